from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
from jsonargparse import ArgumentParser
from lightning.pytorch.callbacks import ModelCheckpoint

from lit_kvpred.data_splits import split_of
from lit_kvpred.datamodules import TextDataModule, token_cache
from lit_kvpred.errors import CheckpointError, ConfigurationError, DataError, KVPredictionError

from .recording import Recorder, trainer

# Lightning's hints on checkpoint folders and tiny runs.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:lightning")


@pytest.fixture
def build(documents, tokenizer_folder, cache_folder):
    def call(**settings):
        defaults = {
            "tokenizer": tokenizer_folder,
            "sources": [str(documents)],
            "sequence_length": 16,
            "batch_size": 4,
            "validation_share": 0.2,
            "test_share": 0.1,
        }
        return TextDataModule(**(defaults | settings))

    return call


def ids(loader):
    return [tuple(row.tolist()) for batch in loader for row in batch["input_ids"]]


def expected_documents(documents, tokenizer, split):
    paths = sorted(documents.iterdir())
    chosen = [path for path in paths if split_of(path.name, 0.2, 0.1) == split]
    return [[*tokenizer.encode(p.read_text()), tokenizer.eos_token_id] for p in chosen]


def expected_rows(documents, tokenizer, split):
    stream = list(itertools.chain(*expected_documents(documents, tokenizer, split)))
    return [tuple(stream[i : i + 16]) for i in range(0, len(stream) - 15, 16)]


def test_packed_training_rows_are_the_training_documents(build, documents, byte_tokenizer):
    batches = list(build().train_dataloader())
    rows = expected_rows(documents, byte_tokenizer, "train")
    read = ids(batches)
    assert set(read) <= set(rows)
    assert len(read) == len(set(read)) == len(rows) - len(rows) % 4
    assert all(batch["attention_mask"].all() for batch in batches)


def test_validation_and_test_read_their_own_documents(build, documents, byte_tokenizer):
    data = build()
    for split, loader in (
        ("validation", data.val_dataloader()),
        ("test", data.test_dataloader()),
    ):
        assert ids(loader) == expected_rows(documents, byte_tokenizer, split)


def test_padded_rows_are_single_documents(build, documents, byte_tokenizer):
    data = build(packing="padded", batch_size=2, sequence_length=32)
    for batch in data.train_dataloader():
        assert batch["document_ids"].max() == 0
        assert torch.equal(batch["document_ids"] == -1, batch["attention_mask"] == 0)
        assert (
            batch["input_ids"][batch["attention_mask"] == 0] == byte_tokenizer.pad_token_id
        ).all()
        assert batch["input_ids"].shape[1] == batch["attention_mask"].sum(1).max()
    rows = {
        tuple(row[mask.bool()].tolist())
        for batch in data.val_dataloader()
        for row, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    }
    assert rows == set(map(tuple, expected_documents(documents, byte_tokenizer, "validation")))


def test_epochs_differ_by_their_order(build):
    loader = build().train_dataloader()
    first, second = ids(loader), ids(loader)
    assert first != second
    assert ids(build().train_dataloader()) == first
    assert ids(build(seed=1).train_dataloader()) != first


def test_a_second_setup_tokenises_nothing(build, monkeypatch):
    build().prepare_data()
    monkeypatch.setattr(token_cache, "encode", None)
    data = build(sequence_length=8, batch_size=2, packing="padded", seed=5)
    data.prepare_data()
    data.setup("fit")
    assert ids(data.train_dataloader())


def test_validation_sequences_are_few_and_spread(build):
    everything = ids(build().val_dataloader())
    few = ids(build(validation_sequences=3).val_dataloader())
    assert few == [everything[i * len(everything) // 3] for i in range(3)]


def test_training_tokens_can_be_limited(build):
    data = build(max_training_tokens=100)
    assert data.describe().get("sequences") is None
    data.setup()
    assert data.describe()["sequences"]["train"] == 6
    assert set(ids(data.train_dataloader())) < set(ids(build(batch_size=1).train_dataloader()))


def test_documents_can_be_limited(build):
    data = build(limit_documents=20)
    data.setup()
    assert sum(data.describe()["documents"].values()) == 20


def test_description_is_plain_and_adds_up(build, documents):
    data = build()
    data.setup()
    description = data.describe()
    tokens = sum(len(path.read_bytes()) + 1 for path in documents.iterdir())
    assert sum(description["documents"].values()) == 40
    assert sum(description["tokens"].values()) == tokens
    assert description["sequences"]["train"] == description["tokens"]["train"] // 16
    assert description["sources"] == [str(documents)]
    assert (description["sequence_length"], description["batch_size"]) == (16, 4)
    assert description["packing"] == "packed"


def test_calibration_is_fixed_and_disturbs_nothing(build):
    data = build()
    batches = iter(data.train_dataloader())
    read = [next(batches), next(batches)]
    state = torch.get_rng_state()
    calibration = ids(data.calibration_dataloader(3))
    assert torch.equal(torch.get_rng_state(), state)
    assert (
        calibration == ids(data.calibration_dataloader(3)) == ids(build().train_dataloader())[:12]
    )
    assert ids([*read, *batches]) == ids(build().train_dataloader())
    assert torch.equal(torch.get_rng_state(), state)


def process(rank, world_size):
    return SimpleNamespace(
        global_rank=rank, world_size=world_size, training=False, train_dataloader=None
    )


def test_processes_share_training_and_validation(build):
    training, validation = [], []
    for rank in range(3):
        data = build(batch_size=2)
        data.trainer = process(rank, 3)
        training.append(ids(data.train_dataloader()))
        validation.extend(ids(data.val_dataloader()))
        assert ids(data.calibration_dataloader(1)) == ids(build().calibration_dataloader(1))[:2]
    assert len({len(share) for share in training}) == 1
    assert len(set().union(*training)) == sum(len(share) for share in training)
    assert sorted(validation) == sorted(ids(build().val_dataloader()))


def test_lightning_leaves_the_loaders_alone(build, tmp_path):
    module, data = Recorder(), build()
    trainer(tmp_path, max_epochs=1, use_distributed_sampler=True).fit(module, datamodule=data)
    flat = [token for batch in module.seen for token in batch]
    assert flat == [token for row in ids(build().train_dataloader()) for token in row]
    validated = [token for batch in module.validated for token in batch]
    assert validated == [token for row in ids(build().val_dataloader()) for token in row]


def test_no_validation_without_a_share(build, tmp_path):
    module, data = Recorder(), build(validation_share=0.0)
    trainer(tmp_path, max_epochs=1).fit(module, datamodule=data)
    assert module.seen
    assert not module.validated


def test_overfitting_repeats_the_same_batches(build, tmp_path):
    module = Recorder()
    trainer(tmp_path, overfit_batches=2).fit(module, datamodule=build())
    assert module.seen[:2] == module.seen[2:]


def test_a_stream_needs_no_cache(build, tmp_path):
    data = build(streaming=True, validation_sequences=3)
    data.prepare_data()
    data.setup("fit")
    assert not (tmp_path / "cache").exists()
    assert len(ids(data.val_dataloader())) == 3
    assert set(ids(data.train_dataloader())).isdisjoint(ids(data.val_dataloader()))


def test_the_command_line_can_build_it(tokenizer_folder):
    parser = ArgumentParser()
    parser.add_class_arguments(TextDataModule, "data")
    parsed = parser.parse_args(
        [f"--data.tokenizer={tokenizer_folder}", "--data.sources=[a, b.txt]"]
    )
    data = parser.instantiate(parsed).data
    assert data.sources == ["a", "b.txt"]
    assert data.hparams.sequence_length == 256


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"sequence_length": 8}, "sequence_length=16, this run has sequence_length=8;"),
        ({"batch_size": 2}, "batch_size=4, this run has batch_size=2;"),
        ({"seed": 1}, "seed=0, this run has seed=1;"),
        ({"packing": "padded"}, "packing=packed, this run has packing=padded;"),
        ({"streaming": True, "validation_sequences": 2}, "streaming=False"),
        ({"limit_documents": 30}, "limit_documents=None"),
        ({"max_training_tokens": 300}, "max_training_tokens=None"),
    ],
)
def test_resuming_with_other_settings_is_refused(build, tmp_path, changed, named):
    saving = ModelCheckpoint(tmp_path, "saved", save_on_train_epoch_end=True)
    trainer(tmp_path, max_epochs=1, callbacks=[saving]).fit(Recorder(), datamodule=build())
    with pytest.raises(CheckpointError) as caught:
        trainer(tmp_path).fit(
            Recorder(), datamodule=build(**changed), ckpt_path=tmp_path / "saved.ckpt"
        )
    assert f"cannot resume: the checkpoint was trained with {named}" in str(caught.value)


def test_resuming_with_other_documents_tokenizer_or_processes_is_refused(
    build, tmp_path, byte_tokenizer
):
    folder = tmp_path / "text"
    folder.mkdir()
    for i in range(30):
        (folder / f"{i}.txt").write_text("some text " * (i + 1))
    saving = ModelCheckpoint(tmp_path, "saved", save_on_train_epoch_end=True)
    source = {"sources": [str(folder)]}
    trainer(tmp_path, max_epochs=1, callbacks=[saving]).fit(Recorder(), datamodule=build(**source))

    def resume(**settings):
        data = build(**(source | settings))
        data.setup("fit")
        data.load_state_dict(
            torch.load(tmp_path / "saved.ckpt", weights_only=True)["TextDataModule"]
        )
        return data

    folder = folder.rename(tmp_path / "moved")
    source["sources"] = [str(folder)]
    assert next(iter(resume().train_dataloader()))
    other = byte_tokenizer.__class__(
        tokenizer_object=byte_tokenizer.backend_tokenizer, eos_token="a"
    )
    other.save_pretrained(tmp_path / "other")
    with pytest.raises(CheckpointError, match="trained with tokenizer="):
        resume(tokenizer=str(tmp_path / "other")).train_dataloader()
    data = resume()
    data.trainer = process(0, 2)
    with pytest.raises(
        CheckpointError, match="trained with world_size=1, this run has world_size=2"
    ):
        data.train_dataloader()
    (folder / "0.txt").write_text("longer than it was")
    with pytest.raises(CheckpointError, match=r"trained with sources=.* documents of hash "):
        resume().train_dataloader()


def test_evaluation_takes_a_checkpoint_of_other_settings(build, tmp_path):
    saving = ModelCheckpoint(tmp_path, "saved", save_on_train_epoch_end=True)
    trainer(tmp_path, max_epochs=1, callbacks=[saving]).fit(Recorder(), datamodule=build())
    module = Recorder()
    trainer(tmp_path).validate(
        module, datamodule=build(batch_size=2), ckpt_path=tmp_path / "saved.ckpt"
    )
    assert len(module.validated[0]) == 32


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sequence_length": 1}, "sequence_length must be at least 2, got 1"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"num_workers": -1}, "num_workers must be at least 0, got -1"),
        ({"limit_documents": 0}, "limit_documents must be at least 1, got 0"),
        ({"sources": []}, "sources is empty; name at least one, for example stdlib"),
        ({"packing": "tight"}, "packing must be packed or padded, got 'tight'"),
        (
            {"validation_share": 0.6, "test_share": 0.4},
            "validation_share and test_share must not be negative and leave a share to train on,"
            " got 0.6 and 0.4",
        ),
        ({"streaming": True}, "streaming has no end to count to; set validation_sequences"),
        (
            {"streaming": True, "validation_sequences": 1, "max_training_tokens": 1},
            "max_training_tokens has no meaning for a stream; limit the trainer's steps instead",
        ),
    ],
)
def test_wrong_settings_are_refused_in_one_line(build, settings, message):
    with pytest.raises(ConfigurationError) as caught:
        build(**settings)
    assert str(caught.value) == message


def test_data_too_small_is_refused_in_one_line(build, tmp_path):
    (tmp_path / "a.py").write_text("text")
    data = build(sources=[str(tmp_path / "a.py")], validation_share=0.2, test_share=0.1)
    assert split_of("a.py", 0.2, 0.1) == "train"
    with pytest.raises(
        DataError, match=r"^no sequence fell into the validation split; add documents"
    ):
        data.val_dataloader()
    data.trainer = process(0, 2)
    with pytest.raises(DataError, match=r"^1 training sequences are too few for 2 process\(es\)"):
        data.train_dataloader()


def test_a_missing_source_is_refused_before_anything_is_built(build):
    with pytest.raises(KVPredictionError, match="is no file, folder or glob"):
        build(sources=["nowhere"]).setup()
