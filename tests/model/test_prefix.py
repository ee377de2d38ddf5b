"""The prefix auxiliary: shared layers are exact, all layers shared is the base."""

from __future__ import annotations

import pytest
import torch

from lit_kvpred.errors import ConfigurationError, PromptError
from lit_kvpred.generation.generate import generate_exact
from lit_kvpred.generation.settings import GenerationSettings
from lit_kvpred.model.auxiliary import build_auxiliary
from lit_kvpred.model.caches import RecordingCache, n_rows
from lit_kvpred.model.kv_prediction import KVPredictionModel
from lit_kvpred.model.sequences import describe_batch
from lit_kvpred.objective import Objective, training_losses
from lit_kvpred.sirius.correction import Correction
from lit_kvpred.unreached import freeze_unreached
from tests.model.predicted import predicted_cache
from tests.tiny_models import FAMILIES, ISSUE_FAMILIES, left_padded, random_ids, tiny_model

_CLOSE = {"atol": 1e-5, "rtol": 1e-5}
_PROMPTS = [random_ids(n, seed=n) for n in (1, 5, 12)]


def _model(family: str = "llama", keep: int = 2, **settings) -> KVPredictionModel:
    base = tiny_model(family, weight_scale=8.0)
    torch.manual_seed(3)
    return KVPredictionModel(base, build_auxiliary(base, "prefix", keep=keep), **settings).eval()


# -- exactness ------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_all_layers_shared_is_the_base(family):
    model = _model(family, keep=4)
    ids, mask = left_padded([random_ids(n, seed=n) for n in (5, 12)])
    plain = RecordingCache()
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    expected = model.base(
        ids, attention_mask=mask, position_ids=positions, cache=plain, use_cache=True
    ).logits[:, -1]
    first = model.prefill(ids, mask)
    assert first.predicted_rows == 0
    torch.testing.assert_close(first.logits, expected, **_CLOSE)
    for layer, reference in zip(first.cache.layers, plain.layers, strict=True):
        for row, length in enumerate(mask.sum(1).tolist()):
            real = slice(12 - length, 12)
            torch.testing.assert_close(
                layer.keys[row, :, real], reference.keys[row, :, real], **_CLOSE
            )
            torch.testing.assert_close(
                layer.values[row, :, real], reference.values[row, :, real], **_CLOSE
            )
    assert list(model.parameters()) == list(model.base.parameters())


@pytest.mark.parametrize("family", ISSUE_FAMILIES)
@pytest.mark.parametrize("kind", ["prefix", "pruned"])
@torch.no_grad()
def test_a_tail_over_the_whole_prompt_is_the_base(family, kind):
    base = tiny_model(family, weight_scale=8.0)
    auxiliary = build_auxiliary(base, kind, keep=2 if kind == "prefix" else 0.5)
    model = KVPredictionModel(base, auxiliary, exact_tail=12)
    ids = random_ids(2, 12)
    first = model.prefill(ids)
    assert first.predicted_rows == 0
    torch.testing.assert_close(first.logits, base(ids).logits[:, -1], **_CLOSE)


@pytest.mark.parametrize("family", ISSUE_FAMILIES)
@pytest.mark.parametrize("static", [None, 20])
@torch.no_grad()
def test_rows_of_shared_layers_are_exact_and_others_are_not(family, static):
    model, ids = _model(family), random_ids(2, 12)
    plain = RecordingCache()
    model.base(ids, cache=plain, use_cache=True)
    first = model.prefill(ids, static_length=static)
    assert n_rows(first.cache) == 12
    assert first.predicted_rows == 11
    for i, (layer, reference) in enumerate(zip(first.cache.layers, plain.layers, strict=True)):
        error = (layer.keys[:, :, :12] - reference.keys).abs().max()
        assert (float(error) < 1e-5) == (i < 2)


@pytest.mark.parametrize("family", ISSUE_FAMILIES)
@torch.no_grad()
def test_prefill_is_the_base_on_the_predicted_cache(family):
    """The last row through the upper layers alone = the whole base on all rows but the last."""
    model, ids = _model(family), random_ids(2, 12)
    sequences = describe_batch(ids[:, :-1], None)
    cache = predicted_cache(model, ids[:, :-1], sequences)
    expected = model.base(ids[:, -1:], cache=cache, use_cache=True).logits[:, -1]
    torch.testing.assert_close(model.prefill(ids).logits, expected, **_CLOSE)


@pytest.mark.parametrize("kind", ["prefix", "pruned"])
@pytest.mark.parametrize("tail", [1, 3, 11])
@torch.no_grad()
def test_the_tail_runs_on_the_predicted_rows_before_it(kind, tail):
    base = tiny_model("llama", weight_scale=8.0)
    auxiliary = build_auxiliary(base, kind, keep=2 if kind == "prefix" else 0.5)
    model, ids = KVPredictionModel(base, auxiliary, exact_tail=tail), random_ids(1, 12)
    sequences = describe_batch(ids, None)
    predicted = model.predict(model.read_auxiliary(ids, sequences)[slice(12 - tail)])
    expected = model.continue_from(predicted, ids, sequences)[:, -1]
    torch.testing.assert_close(model.prefill(ids).logits, expected, **_CLOSE)


@torch.no_grad()
def test_left_padded_prompts_are_each_prompt_alone():
    model = _model(exact_tail=2)
    ids, mask = left_padded(_PROMPTS)
    logits = model.prefill(ids, mask).logits
    for row, prompt in enumerate(_PROMPTS[1:], start=1):
        torch.testing.assert_close(logits[row], model.prefill(prompt[None]).logits[0], **_CLOSE)


@pytest.mark.parametrize("features", ["hidden", "kv"])
@torch.no_grad()
def test_no_row_depends_on_later_tokens(features):
    model, ids = _model(features=features), random_ids(1, 12)
    changed = ids.clone()
    changed[0, 7] = (changed[0, 7] + 1) % 128
    before, after = model(ids), model(changed)
    torch.testing.assert_close(before.logits[:, :7], after.logits[:, :7], **_CLOSE)
    for (k, v), (other_k, other_v) in zip(before.predicted, after.predicted, strict=True):
        torch.testing.assert_close(k[:, :, :7], other_k[:, :, :7], **_CLOSE)
        torch.testing.assert_close(v[:, :, :7], other_v[:, :, :7], **_CLOSE)
        # A row knows its own token and, from hidden states, the one before.
        moved = (k != other_k).any(-1).any(1)[0]
        assert moved[7]


# -- generation -----------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("static", [False, True])
def test_rejecting_every_draft_gives_the_bases_text(family, static):
    model = _model(family, exact_tail=2)
    ids, mask = left_padded(_PROMPTS[1:])
    settings = {"max_new_tokens": 9, "eos_ids": (), "static_cache": static}
    exact = generate_exact(model.adapter, ids, mask, settings=GenerationSettings(**settings))
    output = model.generate(ids, mask, correction=Correction(4, threshold=1.1), **settings)
    assert output.answers == exact.answers
    assert output.stats.accepted == 0


@torch.no_grad()
def test_catching_up_runs_the_shared_layers_once():
    model = _model()
    seen = {0: 0, 3: 0}
    for layer in seen:
        model.base.model.layers[layer].register_forward_hook(
            lambda _, args, __, layer=layer: seen.__setitem__(layer, seen[layer] + args[0].shape[1])
        )
    model.generate(
        random_ids(1, 12), max_new_tokens=3, eos_ids=(), correction=Correction(3, threshold=0.0)
    )
    # Below: the prompt once, two drafts, then last prompt token and three drafts to judge.
    assert seen[0] == 12 + 2 + 4
    # Above: the last row, two drafts, four rows to judge; catch-up ends before layer 3 attends.
    assert seen[3] == 1 + 2 + 4


@pytest.mark.parametrize("keep", [2, 4])
def test_projections_wait_on_disk_and_nothing_where_there_are_none(keep):
    model, ids = _model(keep=keep), random_ids(1, 12)
    chosen = {"max_new_tokens": 4, "eos_ids": ()}
    expected = model.generate(ids, **chosen).answers
    for _ in range(2):
        assert model.generate(ids, release_auxiliary=True, **chosen).answers == expected


def test_an_exact_prompt_has_nothing_to_correct():
    model = _model(exact_tail=20)
    output = model.generate(
        random_ids(1, 12), max_new_tokens=5, eos_ids=(), correction=Correction(3, threshold=1.1)
    )
    assert output.stats.drafted == 0
    assert output.stats.time_to_exact_s == output.stats.ttft_s


# -- training -------------------------------------------------------------------------------------


@pytest.mark.parametrize("features", ["hidden", "kv"])
@pytest.mark.parametrize("split", ["matched", "all_predicted"])
def test_every_projection_gets_a_gradient_and_the_base_none(features, split):
    model = _model(features=features)
    objective = Objective(0.5, 0.0, 1.0, distillation_weight=1.0, split=split)
    assert freeze_unreached(model, objective) == []
    ids = random_ids(2, 12)
    cut = 6 if split == "matched" else None
    losses = training_losses(model, objective, ids, describe_batch(ids, None), cut)
    losses["loss"].backward()
    assert all(p.grad is not None for p in model.predictor.parameters())
    assert all(p.grad is None for p in model.base.parameters())
    assert set(losses) == {"loss", "base_loss", "consistency_loss", "distillation_loss"}


@pytest.mark.parametrize("tail", [1, 3])
def test_kept_hidden_states_change_nothing_but_the_work(tail):
    model, ids = _model(exact_tail=tail), random_ids(2, 12)
    sequences = describe_batch(ids, None)
    auxiliary = model.read_auxiliary(ids, sequences)
    predicted = model.predict(auxiliary[slice(5)])
    with_hidden = model.continue_from(predicted, ids, sequences, auxiliary.hidden)
    torch.testing.assert_close(
        with_hidden, model.continue_from(predicted, ids, sequences), **_CLOSE
    )
    # Both passes of the base are one.
    both, exact = model.read_both(ids, sequences, logits_from=5)
    torch.testing.assert_close(both.hidden, auxiliary.hidden, **_CLOSE)
    torch.testing.assert_close(exact.logits, model.base(ids).logits[:, 5:], **_CLOSE)


def test_packed_documents_stay_apart():
    model = _model()
    prompts = [random_ids(7, seed=1), random_ids(9, seed=2)]
    documents = torch.tensor([[0] * 7 + [1] * 9])
    ids = torch.cat(prompts)[None]
    sequences = describe_batch(ids, None, documents)
    objective = Objective(0.0, 0.0, 0.0, distillation_weight=1.0, split="matched")
    with torch.no_grad():
        packed = training_losses(model, objective, ids, sequences, 12)["loss"]
        alone = prompts[1][None]
        single = training_losses(model, objective, alone, describe_batch(alone, None), 5)["loss"]
    torch.testing.assert_close(packed, single, **_CLOSE)


@pytest.mark.parametrize("features", ["hidden", "kv"])
def test_least_squares_brings_the_prediction_closer(features):
    model = _model(features=features)
    ids = random_ids(4, 24, seed=9)
    sequences = describe_batch(ids, None)

    def error() -> float:
        with torch.no_grad():
            auxiliary, exact = model.read_both(ids, sequences)
            predicted = model.predict(auxiliary)
        return sum(
            float((k - exact.keys[2 + i]).abs().mean()) for i, k in enumerate(predicted.keys)
        )

    before = error()
    fit = model.fit_least_squares([random_ids(8, 32, seed=s) for s in range(6)])
    assert len(fit.key_error) == 2
    assert error() < 0.7 * before


@pytest.mark.parametrize("rank", [1, 8, 96])
def test_a_bottleneck_loses_the_less_the_wider_it_is(rank, tmp_path):
    batches = [random_ids(8, 32, seed=s) for s in range(6)]
    full, reduced = _model(), _model(rank=rank)
    exact = full.fit_least_squares(batches)
    fit = reduced.fit_least_squares(batches)
    wide = rank == 96  # 64 + 32 features: nothing is lost
    for a, b in zip(
        exact.key_error + exact.value_error, fit.key_error + fit.value_error, strict=True
    ):
        assert a - 1e-6 <= b <= 1 + 1e-6
        assert (b - a < 1e-3) == wide
    ids = random_ids(2, 12)
    if wide:
        for own, other in zip(reduced(ids).predicted, full(ids).predicted, strict=True):
            torch.testing.assert_close(own[0], other[0], atol=1e-2, rtol=1e-2)
    reduced.save_pretrained(tmp_path / "artefact")
    loaded = KVPredictionModel.from_pretrained(tmp_path / "artefact", reduced.base)
    assert torch.equal(loaded.prefill(ids).logits, reduced.prefill(ids).logits)


def test_a_bottleneck_that_cannot_be_shared_is_refused():
    with pytest.raises(ConfigurationError, match="needs features that all maps share; set feature"):
        _model(rank=4, features="kv")


def test_objectives_without_sense_are_refused():
    model = _model()
    ids = random_ids(1, 8)
    with pytest.raises(ConfigurationError, match="no logits of its own"):
        training_losses(model, Objective(), ids, describe_batch(ids, None))


# -- construction and artefacts -------------------------------------------------------------------


@pytest.mark.parametrize(("keep", "depth"), [(1, 1), (3, 3), (0.5, 2), (1.0, 4), (0.3, 1)])
def test_depth_by_count_or_fraction(keep, depth):
    base = tiny_model("llama")
    auxiliary = build_auxiliary(base, "prefix", keep=keep)
    assert auxiliary.exact_layers == depth
    assert auxiliary.describe() == {"kind": "prefix", "depth": depth}


@pytest.mark.parametrize("keep", [0, 5, 0.0, 1.5, -1, [0, 1]])
def test_a_depth_out_of_range_is_refused(keep):
    with pytest.raises(ConfigurationError, match=r"prefix"):
        build_auxiliary(tiny_model("llama"), "prefix", keep=keep)


def test_a_count_is_not_a_pruning_rule():
    with pytest.raises(ConfigurationError, match="only a prefix takes"):
        build_auxiliary(tiny_model("llama"), "pruned", keep=2)


@pytest.mark.parametrize("tail", [0, -1, 1.5])
def test_a_tail_without_rows_is_refused(tail):
    with pytest.raises(ConfigurationError, match="exact_tail must be a whole number of at least 1"):
        _model(exact_tail=tail)


@pytest.mark.parametrize("rank", [True, 1.5, "x", 0])
def test_a_rank_that_is_no_count_is_refused(rank):
    with pytest.raises(ConfigurationError, match="rank must be a whole number of at least 1, got"):
        _model(rank=rank)


def test_a_rank_beyond_the_features_is_refused():
    with pytest.raises(ConfigurationError, match="rank must be at most 96, the width of the"):
        _model(rank=97)


def test_the_artefact_is_the_projections_alone(tmp_path):
    model = _model(exact_tail=3)
    model.save_pretrained(tmp_path / "artefact")
    assert sorted(f.name for f in (tmp_path / "artefact").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]
    loaded = KVPredictionModel.from_pretrained(tmp_path / "artefact", model.base)
    assert loaded.exact_tail == 3
    ids = random_ids(1, 9)
    assert torch.equal(loaded.prefill(ids).logits, model.prefill(ids).logits)


def test_an_empty_prompt_is_refused():
    with pytest.raises(PromptError, match="empty"):
        _model().prefill(torch.zeros(1, 0, dtype=torch.long))
