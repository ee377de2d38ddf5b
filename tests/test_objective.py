"""The training objective: every term against an independent computation, gradients, waste."""

from __future__ import annotations

import itertools

import pytest
import torch

from lit_kvpred.errors import ConfigurationError
from lit_kvpred.losses import cross_entropy, kl_divergence, next_token_labels
from lit_kvpred.model.auxiliary import build_auxiliary
from lit_kvpred.model.kv_prediction import KVPredictionModel
from lit_kvpred.model.sequences import Sequences
from lit_kvpred.objective import Objective, training_losses
from lit_kvpred.unreached import freeze_unreached
from tests.model.predicted import predicted_cache
from tests.tiny_models import tiny_model

LENGTH = 12
WEIGHTS = (
    "base_weight",
    "auxiliary_weight",
    "consistency_weight",
    "distillation_weight",
    "hidden_weight",
)


@pytest.fixture
def model():
    base = tiny_model("llama")
    return KVPredictionModel(base, build_auxiliary(base, "pruned", keep=0.5))


@pytest.fixture
def batch():
    ids = torch.randint(3, 128, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    return ids, Sequences.unpadded(2, LENGTH, ids.device)


def only(**weights: float) -> Objective:
    zero = dict.fromkeys(WEIGHTS, 0.0)
    return Objective(**{**zero, "z_loss_weight": 0.0, **weights})


def test_terms_of_the_published_objective(model, batch):
    ids, sequences = batch
    losses = training_losses(model, Objective(z_loss_weight=0.0), ids, sequences)
    output = model(ids)
    labels, mask = next_token_labels(ids, sequences)
    assert losses["base_loss"].item() == pytest.approx(
        cross_entropy(output.logits, labels, mask).item(), abs=1e-5
    )
    assert losses["auxiliary_loss"].item() == pytest.approx(
        cross_entropy(output.auxiliary_logits, labels, mask).item(), abs=1e-5
    )
    exact = model.read_base(ids, sequences)
    errors = 0.0
    for layer, (keys, values) in enumerate(output.predicted):
        target = exact.values[layer].unflatten(2, (2, 8)).transpose(1, 2)
        errors += (keys - exact.keys[layer]).abs().mean() + (values - target).abs().mean()
    assert losses["consistency_loss"].item() == pytest.approx(errors.item() / 4, abs=1e-5)
    total = losses["base_loss"] + losses["auxiliary_loss"] + losses["consistency_loss"]
    assert losses["loss"].item() == pytest.approx(total.item(), abs=1e-5)


def test_sum_over_layers_is_the_mean_times_the_layers(model, batch):
    mean = training_losses(model, only(consistency_weight=1.0), *batch)["loss"]
    objective = Objective(
        base_weight=0,
        auxiliary_weight=0,
        consistency_weight=1.0,
        consistency_reduction="sum",
    )
    assert training_losses(model, objective, *batch)["loss"].item() == pytest.approx(
        4 * mean.item(), rel=1e-5
    )


def test_matched_distillation_compares_the_rows_after_the_cut(model, batch):
    ids, sequences = batch
    cut = 5
    objective = only(distillation_weight=1.0)
    loss = training_losses(model, objective, ids, sequences, cut)["loss"]
    # As at inference: a cache of predicted rows, then the base token by token.
    with torch.no_grad():
        cache = predicted_cache(model, ids[:, :cut], sequences[:cut])
        steps = [
            model.base(
                ids[:, t : t + 1], position_ids=torch.full((2, 1), t), cache=cache, use_cache=True
            ).logits
            for t in range(cut, LENGTH)
        ]
        exact = model.base(ids).logits[:, cut:]
        expected = kl_divergence(exact, torch.cat(steps, 1), sequences.real[:, cut:])
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)


@pytest.mark.parametrize("kind", ["pruned", "prefix"])
@pytest.mark.parametrize("cut", [None, 5])
def test_hidden_states_are_compared_behind_every_predicted_layer(batch, kind, cut):
    ids, sequences = batch
    base = tiny_model("llama")
    model = KVPredictionModel(base, build_auxiliary(base, kind, keep=0.5), exact_tail=3)
    first = model.auxiliary.exact_layers
    loss = training_losses(model, only(hidden_weight=1.0), ids, sequences, cut)["hidden_loss"]
    seen = []
    handles = [
        layer.register_forward_hook(lambda *arguments: seen.append(arguments[2]))
        for layer in base.model.layers[first:]
    ]
    with torch.no_grad():
        base(ids)
        exact = torch.stack(seen)[:, :, cut:]
        seen.clear()
        rows = ids[:, :cut]
        cache = predicted_cache(model, rows, sequences[:cut]) if cut else None
        if cut:
            base(ids[:, cut:], cache=cache, use_cache=True)
        else:
            model.replay(model.predict(model.read_auxiliary(ids, sequences)), ids, sequences)
    for handle in handles:
        handle.remove()
    cosine = torch.cosine_similarity(torch.stack(seen), exact, dim=-1)
    assert len(seen) == base.config.num_hidden_layers - first
    assert loss.item() == pytest.approx(2 * (1 - cosine.mean().item()), rel=1e-3)


def test_distillation_of_an_identity_predictor_is_zero(batch):
    base = tiny_model("qwen3")
    model = KVPredictionModel(base, build_auxiliary(base, "pruned", keep=[0, 1, 2, 3]))
    model.predictor.set_identity_()
    for cut in (None, 4):
        objective = only(distillation_weight=1.0, hidden_weight=1.0)
        losses = training_losses(model, objective, *batch, cut)
        assert losses["distillation_loss"].item() == pytest.approx(0.0, abs=1e-5)
        assert losses["hidden_loss"].item() == pytest.approx(0.0, abs=1e-5)
    losses = training_losses(model, only(consistency_weight=1.0), *batch)
    assert losses["loss"].item() == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("split", ["all_predicted", "matched"])
@pytest.mark.parametrize("zeroed", [(), *((w,) for w in WEIGHTS), WEIGHTS[1:], WEIGHTS[:2]])
def test_every_parameter_left_trainable_gets_a_gradient(batch, split, zeroed):
    base = tiny_model("qwen2")
    model = KVPredictionModel(base, build_auxiliary(base, "pruned", keep=0.5))
    objective = Objective(**{w: 0.0 if w in zeroed else 1.0 for w in WEIGHTS}, split=split)
    frozen = freeze_unreached(model, objective)
    assert not any(name.startswith("base.") for name in frozen)
    assert bool(frozen) == ("auxiliary_weight" in zeroed)
    cut = None if split == "all_predicted" else 5
    training_losses(model, objective, *batch, cut)["loss"].backward()
    trainable = {n for n, p in model.named_parameters() if p.requires_grad}
    assert trainable == {n for n, p in model.named_parameters() if p.grad is not None}
    assert trainable


def test_zero_weights_cost_nothing(model, batch):
    calls = []
    model.base.lm_head.register_forward_hook(lambda *_: calls.append("base head"))
    model.auxiliary.model.lm_head.register_forward_hook(lambda *_: calls.append("aux head"))
    training_losses(model, only(consistency_weight=1.0), *batch)
    assert calls == []
    training_losses(model, only(base_weight=1.0), *batch)
    assert calls == ["base head"]
    calls.clear()
    training_losses(model, Objective(), *batch)
    assert sorted(calls) == ["aux head", "base head"]  # none for the target pass


def test_packed_documents_train_as_if_alone(model):
    ids = torch.randint(3, 128, (1, LENGTH), generator=torch.Generator().manual_seed(2))
    documents = torch.tensor([[0] * 5 + [1] * 7])
    together = training_losses(model, Objective(), ids, Sequences.packed(documents))
    parts = [
        training_losses(model, Objective(), part, Sequences.unpadded(1, part.shape[1], ids.device))
        for part in (ids[:, :5], ids[:, 5:])
    ]
    for name, rows in (("base_loss", (4, 6)), ("consistency_loss", (5, 7))):
        mean = sum(n * float(p[name]) for n, p in zip(rows, parts, strict=True)) / sum(rows)
        assert together[name].item() == pytest.approx(mean, abs=1e-5)


def test_bad_objectives_are_refused():
    for arguments in (
        dict.fromkeys(WEIGHTS, 0.0),
        {"base_weight": -1.0},
        {"hidden_weight": float("nan")},
        {"z_loss_weight": float("nan")},
        {"distillation_weight": float("inf")},
        {"auxiliary_weight": "1"},
        {"consistency_reduction": "max"},
        {"split": "half"},
    ):
        with pytest.raises(ConfigurationError):
            Objective(**arguments)


def test_right_padding_changes_no_term(model):
    ids = torch.randint(3, 128, (2, 9), generator=torch.Generator().manual_seed(3))
    padded = torch.cat([ids, torch.zeros(2, 3, dtype=torch.long)], dim=1)
    mask = torch.ones_like(padded)
    mask[:, 9:] = 0
    plain = training_losses(model, Objective(), ids, Sequences.unpadded(2, 9, ids.device))
    right = training_losses(model, Objective(), padded, Sequences.padded(mask))
    for name in plain:
        assert right[name].item() == pytest.approx(plain[name].item(), abs=1e-5), name


def test_combinations_of_splits_and_weights_are_finite(model, batch):
    for cut, first, second in itertools.product((None, 1, LENGTH - 1), WEIGHTS, WEIGHTS):
        losses = training_losses(model, only(**{first: 1.0, second: 0.5}), *batch, cut)
        assert bool(torch.isfinite(losses["loss"])), (cut, first, second)
