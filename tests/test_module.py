"""The LightningModule: what it trains, keeps frozen, saves and refuses."""

from __future__ import annotations

import copy

import pytest
import torch
from lightning.pytorch import Callback, Trainer

from lit_kvpred.datamodules import TextDataModule
from lit_kvpred.errors import CheckpointError, ConfigurationError, NonFiniteLossError
from lit_kvpred.module import KVPredictionModule
from lit_kvpred.optimisation import decay_groups, warmup_cosine
from tests.base_folders import make_base, make_documents


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> str:
    return make_base(tmp_path_factory.mktemp("base"), attention_dropout=0.5)


@pytest.fixture(scope="module")
def documents(tmp_path_factory) -> str:
    return make_documents(tmp_path_factory.mktemp("documents"))


@pytest.fixture
def data(base, documents, tmp_path, monkeypatch) -> TextDataModule:
    monkeypatch.setenv("LIT_KVPRED_CACHE", str(tmp_path / "cache"))
    return TextDataModule(
        base, [documents], sequence_length=24, batch_size=2, validation_share=0.2,
        validation_sequences=3,
    )  # fmt: skip


def trainer(tmp_path, *callbacks: Callback, **settings) -> Trainer:
    return Trainer(
        accelerator="cpu", devices=1, default_root_dir=tmp_path, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=list(callbacks), **{"max_steps": 3, "limit_val_batches": 1, **settings},
    )  # fmt: skip


class Watch(Callback):
    def __init__(self) -> None:
        self.modes: list[tuple[bool, bool]] = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
        model = pl_module.kv_model
        self.modes.append((model.base.training, model.auxiliary.training))


def test_base_is_untouched_and_always_in_eval_mode(base, data, tmp_path):
    module, watch = KVPredictionModule(base, weight_decay=0.1), Watch()
    module.configure_model()
    before = copy.deepcopy(module.kv_model.base.state_dict())
    trained = {n: p.clone() for n, p in module.named_parameters() if p.requires_grad}
    trainer(tmp_path, watch, val_check_interval=1).fit(module, datamodule=data)
    assert watch.modes == [(False, True)] * 3
    after = module.kv_model.base.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(p.grad is None for p in module.kv_model.base.parameters())
    parameters = dict(module.named_parameters())
    assert all(not torch.equal(value, parameters[name]) for name, value in trained.items())
    assert all(parameters[name].dtype == torch.float32 for name in trained)


def test_bfloat16_files_train_in_float32_under_mixed_precision(tmp_path, documents, data):
    from transformers import AutoModelForCausalLM

    folder = make_base(tmp_path / "half")
    model = AutoModelForCausalLM.from_pretrained(folder).to(torch.bfloat16)
    model.save_pretrained(folder)
    module = KVPredictionModule(folder, distillation_weight=1.0, split="matched")
    run = trainer(tmp_path, precision="bf16-mixed", max_steps=2)
    run.fit(module, datamodule=data)
    assert module.kv_model.base.dtype == torch.bfloat16
    assert {p.dtype for p in module.parameters() if p.requires_grad} == {torch.float32}
    assert run.global_step == 2


def test_least_squares_beats_the_published_init_at_step_zero(base, data, tmp_path):
    losses = {}
    for init in ("default", "least_squares"):
        module = KVPredictionModule(base, init=init, calibration_batches=8, learning_rate=0.0)
        run = trainer(tmp_path, max_steps=1, log_every_n_steps=1)
        run.fit(module, datamodule=data)
        losses[init] = float(run.callback_metrics["train/consistency_loss"])
    assert losses["least_squares"] < 0.5 * losses["default"]


def test_training_lowers_the_validation_kl(base, data, tmp_path):
    module = KVPredictionModule(
        base, init="default", base_weight=0, auxiliary_weight=0, consistency_weight=0,
        distillation_weight=1.0, split="matched", learning_rate=3e-3, weight_decay=0.0,
    )  # fmt: skip
    first = trainer(tmp_path).validate(module, datamodule=data, verbose=False)[0]["val/kl"]
    trainer(tmp_path, max_steps=40).fit(module, datamodule=data)
    last = trainer(tmp_path).validate(module, datamodule=data, verbose=False)[0]["val/kl"]
    assert last < 0.7 * first


def test_nan_stops_before_the_weights_are_touched(base, data, tmp_path):
    module = KVPredictionModule(base, init="default")
    module.configure_model()
    with torch.no_grad():
        module.kv_model.predictor.keys[0].bias[0] = float("nan")
    with pytest.raises(NonFiniteLossError, match="the training loss is not finite at step 0"):
        trainer(tmp_path).fit(module, datamodule=data)


def test_infinite_gradient_stops_too(base, data, tmp_path):
    module = KVPredictionModule(base, init="default")
    module.configure_model()
    module.kv_model.predictor.keys[0].bias.register_hook(lambda g: g * float("inf"))
    before = copy.deepcopy(module.kv_model.predictor.state_dict())
    with pytest.raises(NonFiniteLossError, match="a gradient is not finite at step 0"):
        trainer(tmp_path).fit(module, datamodule=data)
    after = module.kv_model.predictor.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_checkpoint_without_a_trained_tensor_is_refused(base):
    module = KVPredictionModule(base)
    module.configure_model()
    state = module.state_dict()
    assert not any(name.startswith("model.base.") for name in state)
    del state["model.predictor.keys.1.weight"]
    with pytest.raises(CheckpointError, match=r"lacks 1 trained tensors.*keys\.1\.weight"):
        module.load_state_dict(state)


def test_load_from_checkpoint_restores_everything(base, data, tmp_path):
    module = KVPredictionModule(base)
    run = trainer(tmp_path)
    run.fit(module, datamodule=data)
    run.save_checkpoint(tmp_path / "saved.ckpt", weights_only=False)
    loaded = KVPredictionModule.load_from_checkpoint(tmp_path / "saved.ckpt", weights_only=True)
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name]), name
    assert loaded.tokens_seen == module.tokens_seen == 3 * 2 * 24


def test_foreign_checkpoint_is_refused(base):
    module = KVPredictionModule(base)
    with pytest.raises(CheckpointError, match="not written by this package"):
        module.on_load_checkpoint({"state_dict": {}})


def _distilled_with_tail(base, tail) -> KVPredictionModule:
    return KVPredictionModule(
        base, split="matched", exact_tail=tail, distillation_weight=1.0, base_weight=0.0,
        auxiliary_weight=0.0, consistency_weight=0.0, weight_decay=0.0, auxiliary="prefix",
    )  # fmt: skip


def test_rows_with_nothing_behind_the_tail_are_refused_before_anything_is_fitted(
    base, data, tmp_path
):
    module = _distilled_with_tail(base, 23)
    message = "rows of 24 tokens have nothing to compare .* exact tail of 23; raise data.sequence_"
    with pytest.raises(ConfigurationError, match=message):
        trainer(tmp_path).fit(module, datamodule=data)
    assert module.batches_seen == 0
    trainer(tmp_path).fit(_distilled_with_tail(base, 22), datamodule=data)


def test_batches_with_nothing_behind_the_tail_teach_nothing_and_are_named(
    base, tmp_path, monkeypatch
):
    monkeypatch.setenv("LIT_KVPRED_CACHE", str(tmp_path / "cache"))
    (tmp_path / "short.jsonl").write_text('{"text": "some twenty letters"}\n' * 40)
    data = TextDataModule(
        base, [str(tmp_path / "short.jsonl")], sequence_length=64, batch_size=2,
        packing="padded", validation_share=0.2, validation_sequences=3,
    )  # fmt: skip
    module = _distilled_with_tail(base, 40)
    start = {}
    module.on_train_start = lambda: start.update(
        {name: tensor.clone() for name, tensor in module.state_dict().items()}
    )
    with pytest.warns(UserWarning, match="A batch of 20 tokens has nothing to compare"):
        trainer(tmp_path, max_steps=2).fit(module, datamodule=data)
    assert module.tokens_seen == 2 * 2 * 20
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, start[name]), name


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"learning_rate": "0.1"}, "learning_rate must be a number of at least 0, got '0.1'"),
        ({"learning_rate": float("inf")}, "learning_rate must be a number of at least 0"),
        ({"minimum_learning_rate": float("nan")}, "minimum_learning_rate must be a number"),
        ({"minimum_learning_rate": 2.0}, "at least 0 and at most 1, got 2.0"),
        ({"warmup_steps": 1.5}, "warmup_steps must be a whole number of at least 0, got 1.5"),
        ({"weight_decay": float("nan")}, "weight_decay must be a number of at least 0, got nan"),
        ({"betas": (2, 0.5)}, "each of model.betas must be a number of at least 0 and below 1"),
        ({"betas": (0.9,)}, "betas must be two numbers"),
        ({"betas": 0.9}, "betas must be two numbers"),
        ({"ridge": float("nan")}, "ridge must be a number of at least 0"),
        ({"calibration_batches": 0}, "calibration_batches must be a whole number of at least 1"),
        ({"calibration_batches": None}, "calibration_batches must be a whole number"),
        ({"generated_batches": -1}, "generated_batches must be a whole number of at least 0"),
        ({"exact_tail": 0}, "model.exact_tail must be a whole number of at least 1 or a fraction"),
        ({"rank": 0}, "model.rank must be a whole number of at least 1, got 0"),
        ({"seed": 1.0}, "seed must be a whole number"),
        ({"hidden_weight": None}, "hidden_weight must be a number"),
    ],
)
def test_settings_out_of_range_are_refused(base, wrong, message):
    with pytest.raises(ConfigurationError, match=message) as error:
        KVPredictionModule(base, **wrong)
    assert "\n" not in str(error.value)


def test_calibration_needs_a_data_module_that_offers_it(base, tmp_path):
    loader = torch.utils.data.DataLoader([{"input_ids": torch.ones(8, dtype=torch.long)}])
    with pytest.raises(ConfigurationError, match="calibration_dataloader"):
        trainer(tmp_path).fit(KVPredictionModule(base), loader)


def test_calibration_goes_on_with_texts_of_the_base_itself(base, data, tmp_path):
    module = KVPredictionModule(
        base, calibration_batches=3, generated_batches=2, learning_rate=0.0, seed=4
    )
    trainer(tmp_path, max_steps=1).fit(module, datamodule=data)
    given = list(data.calibration_dataloader(3))
    batches = list(module._calibration_batches())
    assert len(batches) == 5
    for batch, expected in zip(batches, given, strict=False):
        assert torch.equal(batch["input_ids"], expected["input_ids"])
    for batch, begun in zip(batches[3:], given, strict=False):
        own, start = batch["input_ids"], begun["input_ids"]
        assert own.shape == start.shape
        assert torch.equal(own[:, :8], start[:, :8])
        assert not torch.equal(own, start)


def test_rows_too_short_to_go_on_from_are_named(base, documents, tmp_path):
    short = TextDataModule(
        base, [documents], sequence_length=8, batch_size=2, validation_share=0.2,
        validation_sequences=3,
    )  # fmt: skip
    module = KVPredictionModule(base, calibration_batches=3, generated_batches=2)
    with pytest.raises(ConfigurationError, match="go on from the first 8 tokens of training rows"):
        trainer(tmp_path).fit(module, datamodule=short)


def test_more_generated_batches_than_texts_to_go_on_from_are_refused(base):
    with pytest.raises(ConfigurationError, match="generated_batches must be between 0 and"):
        KVPredictionModule(base, calibration_batches=2, generated_batches=3)


def test_schedule_and_decay_groups():
    factor = warmup_cosine(4, lambda: 14, 0.1)
    assert [round(factor(s), 3) for s in (0, 1, 4)] == [0.2, 0.4, 1.0]
    assert factor(9) == pytest.approx(0.55)
    assert factor(14) == pytest.approx(0.1)
    assert factor(99) == pytest.approx(0.1)
    layer = torch.nn.Linear(2, 3)
    frozen = torch.nn.Linear(2, 3).requires_grad_(False)
    groups = decay_groups([*layer.parameters(), *frozen.parameters()], 0.3)
    assert groups[0]["params"] == [layer.weight]
    assert groups[1]["params"] == [layer.bias]
    assert [g["weight_decay"] for g in groups] == [0.3, 0.0]
