from __future__ import annotations

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint

from lit_kvpred.datamodules import TextDataModule
from lit_kvpred.datamodules.resume import Position, ResumableLoader, check_settings
from lit_kvpred.errors import CheckpointError

from .recording import KilledError, Recorder, trainer

STREAM = {"streaming": True, "validation_sequences": 2}
DATA = {
    "tokenised": {},
    "tokenised, workers": {"num_workers": 2},
    "stream": STREAM,
    "stream, workers": STREAM | {"num_workers": 2},
}
TRAINING = {
    "epochs": {},
    "steps": {"max_steps": 9, "max_epochs": -1},
    "accumulating": {"accumulate_grad_batches": 4},
    "limited": {"limit_train_batches": 4},
    "validating within epochs": {"val_check_interval": 3},
    "not validating": {"limit_val_batches": 0},
}
CASES = [("tokenised", t) for t in TRAINING] + [(d, "epochs") for d in DATA if d != "tokenised"]
CASES += [("stream", "accumulating"), ("stream", "validating within epochs")]

# Lightning's hints on checkpoint folders and tiny runs.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:lightning")


class Runs:
    def __init__(self, data, folder, workers):
        self.data = data
        self.folder = folder
        self.workers = workers

    def __call__(self, *, fail_at=None, ckpt_path=None, **options):
        module = Recorder(fail_at)
        running = trainer(self.folder, **options)
        try:
            running.fit(module, datamodule=self.data(), ckpt_path=ckpt_path)
        except KilledError:
            assert fail_at is not None
        return module.seen

    def places(self, steps):
        """All of them; a few of each kind where starting workers takes longer than all else."""
        return [s for s in steps if s in (0, 1, 5, 6, 7)] if self.workers else steps


@pytest.fixture
def runs(request, tmp_path, documents, tokenizer_folder, cache_folder):
    """Runs of two epochs of 6 batches."""
    settings = DATA[request.param]

    def data():
        return TextDataModule(
            tokenizer_folder,
            [str(documents)],
            sequence_length=16,
            batch_size=4,
            validation_share=0.2,
            test_share=0.0,
            **settings,
        )

    return Runs(data, tmp_path, "num_workers" in settings)


@pytest.mark.parametrize(("runs", "training"), CASES[:-2], indirect=["runs"])
def test_a_run_killed_in_any_batch_goes_on_with_that_batch(runs, training, tmp_path):
    options = TRAINING[training]
    expected = runs(**options)
    assert len(set(expected)) == len(expected)
    for step in runs.places(range(len(expected))):
        folder = tmp_path / str(step)
        killed = runs(fail_at=step, callbacks=[OnExceptionCheckpoint(folder, "killed")], **options)
        assert killed == expected[:step]
        assert runs(ckpt_path=folder / "killed.ckpt", **options) == expected[step:]


@pytest.mark.parametrize(("runs", "training"), CASES, indirect=["runs"])
def test_a_checkpoint_of_any_step_goes_on_with_the_next_batch(runs, training, tmp_path, recwarn):
    options = TRAINING[training]
    every_step = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1)
    expected = runs(callbacks=[every_step], **options)
    batches = options.get("accumulate_grad_batches", 1)
    checkpoints = {int(p.stem.split("=")[1]): p for p in tmp_path.glob("*.ckpt")}
    assert max(checkpoints) == (4 if batches == 4 else len(expected))
    for step in runs.places(sorted(checkpoints)):
        # Six batches of an epoch, accumulated by four, are two steps, of four and of two batches.
        done = 6 * (step // 2) + 4 * (step % 2) if batches == 4 else step
        assert runs(ckpt_path=checkpoints[step], **options) == expected[done:]
    assert not [w for w in recwarn if "resumable" in str(w.message)]


@pytest.mark.parametrize("at_train_end", [True, False])
@pytest.mark.parametrize("runs", ["tokenised", "stream"], indirect=True)
def test_a_checkpoint_of_an_epoch_goes_on_with_the_next(runs, tmp_path, at_train_end):
    every_epoch = ModelCheckpoint(
        tmp_path, "{epoch}", save_top_k=-1, save_on_train_epoch_end=at_train_end
    )
    expected = runs(callbacks=[every_epoch])
    assert runs(ckpt_path=tmp_path / "epoch=0.ckpt") == expected[6:]
    assert runs(ckpt_path=tmp_path / "epoch=1.ckpt", max_epochs=3) == runs(max_epochs=3)[12:]


@pytest.mark.parametrize("runs", ["tokenised", "stream"], indirect=True)
@pytest.mark.parametrize("stopped", [4, 6, 9])
def test_a_longer_run_continues_one_that_ended(runs, tmp_path, stopped):
    saving = ModelCheckpoint(tmp_path, "ended", save_on_train_epoch_end=True)
    expected = runs(max_steps=15, max_epochs=-1)
    assert runs(max_steps=stopped, max_epochs=-1, callbacks=[saving]) == expected[:stopped]
    longer = runs(max_steps=15, max_epochs=-1, ckpt_path=tmp_path / "ended.ckpt")
    assert longer == expected[stopped:]


@pytest.mark.parametrize("runs", ["tokenised", "stream"], indirect=True)
def test_a_run_killed_again_and_again(runs, tmp_path):
    options = {"max_epochs": 4, "reload_dataloaders_every_n_epochs": 1}
    seen, path = [], None
    for number, step in enumerate((5, 4, 9, None)):
        saving = OnExceptionCheckpoint(tmp_path, str(number))
        seen += runs(fail_at=step, ckpt_path=path, callbacks=[saving], **options)
        path = tmp_path / f"{number}.ckpt"
    assert seen == runs(**options)


@pytest.mark.parametrize("runs", ["tokenised"], indirect=True)
def test_checkpoints_hold_plain_values(runs, tmp_path):
    runs(callbacks=[ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=4, save_top_k=-1)])
    checkpoint = torch.load(tmp_path / "step=4.ckpt", weights_only=True)
    (position,) = checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"]
    assert position == {"epoch": 0, "batches": 4, "finished": False}
    assert checkpoint["TextDataModule"]["settings"]["sequence_length"] == 16
    assert checkpoint["datamodule_hyper_parameters"]["batch_size"] == 4


def epochs_of_three(epoch, skip):
    return iter([{"id": (epoch, i)} for i in range(skip, 3)])


def ids(batches):
    return [batch["id"] for batch in batches]


def test_outside_a_trainer_the_batches_handed_out_count():
    loader = ResumableLoader(epochs_of_three, start=Position(), length=3)
    assert ids(loader) == [(0, 0), (0, 1), (0, 2)]
    batches = iter(loader)
    assert ids([next(batches), next(batches)]) == [(1, 0), (1, 1)]
    other = ResumableLoader(epochs_of_three, start=Position(), length=3)
    other.load_state_dict(loader.state_dict())
    assert ids(other) == [(1, 2)]
    assert ids(other) == [(2, 0), (2, 1), (2, 2)]


def test_opening_without_reading_moves_nothing():
    loader = ResumableLoader(epochs_of_three, start=Position(4, 1), length=None)
    iter(loader)
    assert loader.state_dict() == {"epoch": 4, "batches": 1, "finished": False}
    assert ids(loader) == [(4, 1), (4, 2)]


def test_a_finished_epoch_is_not_read_again():
    loader = ResumableLoader(epochs_of_three, start=Position(2, 3, finished=True), length=3)
    assert ids(loader) == []
    assert ids(loader)[0] == (3, 0)


def test_length():
    assert len(ResumableLoader(epochs_of_three, start=Position(), length=3)) == 3
    with pytest.raises(TypeError, match="not known"):
        len(ResumableLoader(epochs_of_three, start=Position(), length=None))


def test_the_state_of_another_loader_is_refused():
    loader = ResumableLoader(epochs_of_three, start=Position(), length=3)
    with pytest.raises(CheckpointError, match=r"\['_index'\] is none of this data module"):
        loader.load_state_dict({"_index": 3})


def test_differing_settings_are_named():
    check_settings({"seed": 1, "old": 2}, {"seed": 1})
    with pytest.raises(CheckpointError, match=r"trained with seed=1, this run has seed=2;"):
        check_settings({"seed": 1}, {"seed": 2})
    with pytest.raises(CheckpointError, match="new=absent, this run has new=2;"):
        check_settings({"seed": 1}, {"seed": 1, "new": 2})
