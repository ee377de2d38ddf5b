from __future__ import annotations

import copy
from functools import cache, partial

import pytest
import torch
import torch.nn.functional as F
from transformers import DynamicCache

from lit_kvpred.errors import ConfigurationError, UnsupportedFamilyError
from lit_kvpred.model.auxiliary import build_auxiliary
from lit_kvpred.model.kv_prediction import KVPredictionModel
from lit_kvpred.model.reading import mean_absolute_error
from lit_kvpred.model.sequences import describe_batch
from tests.model.predicted import predicted_cache
from tests.model.projections import replaced_projections
from tests.tiny_models import (
    FAMILIES,
    ISSUE_FAMILIES,
    KEY_NORM_FAMILIES,
    ROPE_TYPES,
    identity_model,
    left_padded,
    predicting_model,
    random_ids,
    tiny_model,
)

_CLOSE = {"atol": 1e-5, "rtol": 1e-5}
# Longer than every window of the tiny families.
_LENGTH = 13
_SOME_FAMILIES = (*ISSUE_FAMILIES, "gemma3_text", "cohere2", "gpt_oss")


@cache
def _predicting(family: str) -> KVPredictionModel:
    """A model with random maps, for tests that only read it."""
    return predicting_model(tiny_model(family))


def _check_identity(base, tolerance: dict) -> None:
    """Train path, prefill, its cache and two decode steps are those of the base."""
    ids = random_ids(2, _LENGTH + 2)
    prompt = ids[:, :_LENGTH]
    model = identity_model(base)
    with torch.no_grad():
        expected = base(ids, use_cache=False).logits
        exact = DynamicCache()
        base(prompt, cache=exact, use_cache=True)
        trained = model(ids)
        torch.testing.assert_close(trained.logits, expected, **tolerance)
        prefill = model.prefill(prompt)
        torch.testing.assert_close(prefill.logits, expected[:, _LENGTH - 1].float(), **tolerance)
        for got, want in zip(prefill.cache.layers, exact.layers, strict=True):
            assert got.keys.dtype == want.keys.dtype
            torch.testing.assert_close(got.keys, want.keys, **tolerance)
            torch.testing.assert_close(got.values, want.values, **tolerance)
        for step in (_LENGTH, _LENGTH + 1):
            token = ids[:, step : step + 1]
            logits = base(token, cache=prefill.cache, use_cache=True).logits[:, 0]
            torch.testing.assert_close(logits, expected[:, step], **tolerance)


@pytest.mark.parametrize("family", FAMILIES)
def test_identity(family):
    _check_identity(tiny_model(family), _CLOSE)


@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3", "gpt_neox", "gpt2", "gpt_oss"])
def test_identity_with_eager_attention(family):
    base = tiny_model(family, attn_implementation="eager")
    assert base.config._attn_implementation == "eager"
    _check_identity(base, _CLOSE)


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen3", "gpt_neox", "gpt2"])
def test_identity_with_a_base_in_bfloat16(family):
    base = tiny_model(family, dtype=torch.bfloat16)
    _check_identity(base, {"atol": 8e-2, "rtol": 4e-2})
    assert {p.dtype for p in base.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("rope", ROPE_TYPES)
def test_identity_with_rope_scaling(rope):
    _check_identity(
        tiny_model("llama", rope_parameters={"rope_theta": 10000.0, **ROPE_TYPES[rope]}), _CLOSE
    )


def test_identity_with_positions_as_a_bias():
    _check_identity(tiny_model("bloom"), _CLOSE)


def test_identity_with_a_window():
    _check_identity(tiny_model("mistral", sliding_window=4), _CLOSE)


def test_an_auxiliary_with_other_rotation_speaks_of_the_same_keys():
    base = tiny_model("llama")
    network = copy.deepcopy(base)
    network.config.rope_parameters = {"rope_type": "default", "rope_theta": 100.0}
    network.model.rotary_emb = type(network.model.rotary_emb)(network.config)
    auxiliary = build_auxiliary(base, "canonical", source=network)
    model = KVPredictionModel(base, auxiliary).eval()
    model.predictor.set_identity_()
    ids = random_ids(2, _LENGTH)
    sequences = describe_batch(ids, None)
    with torch.no_grad():
        theirs, ours = model.read_auxiliary(ids, sequences), model.read_base(ids, sequences)
        # Layer 0 reads embeddings alone; deeper ones have seen another attention.
        torch.testing.assert_close(theirs.raw_keys[0], ours.raw_keys[0], **_CLOSE)
        assert not torch.allclose(theirs.raw_keys[1], ours.raw_keys[1], atol=1e-2)
        exact, other = DynamicCache(), DynamicCache()
        base(ids, cache=exact, use_cache=True)
        network(ids, cache=other, use_cache=True)
    assert not torch.allclose(other.layers[0].keys, exact.layers[0].keys, atol=1e-2)
    cache = predicted_cache(model, ids, sequences)
    torch.testing.assert_close(cache.layers[0].keys, exact.layers[0].keys, **_CLOSE)


# -- against a base whose projections are replaced by plain hooks --------------------------------


def _predicted_raw(model: KVPredictionModel, ids: torch.Tensor):
    with torch.no_grad():
        rows = model.read_auxiliary(ids, describe_batch(ids, None))
        return model.predictor(rows)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_train_path_replaces_every_key_and_value(family):
    model, ids = _predicting(family), random_ids(2, _LENGTH)
    base = model.base
    keys, values = _predicted_raw(model, ids)
    with replaced_projections(base, keys, values):
        expected = base(ids, use_cache=False).logits
    output = model(ids)
    torch.testing.assert_close(output.logits, expected, **_CLOSE)
    assert not torch.allclose(output.logits, base(ids, use_cache=False).logits, atol=1e-2)
    auxiliary = model.auxiliary.model(ids, use_cache=False).logits
    torch.testing.assert_close(output.auxiliary_logits, auxiliary, **_CLOSE)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_prefill_replaces_all_rows_but_the_last(family):
    model, ids = _predicting(family), random_ids(2, _LENGTH)
    base = model.base
    keys, values = _predicted_raw(model, ids[:, :-1])
    cache = DynamicCache()
    with replaced_projections(base, keys, values):
        expected = base(ids, cache=cache, use_cache=True).logits[:, -1]
    prefill = model.prefill(ids)
    torch.testing.assert_close(prefill.logits, expected, **_CLOSE)
    for got, want in zip(prefill.cache.layers, cache.layers, strict=True):
        torch.testing.assert_close(got.keys, want.keys, **_CLOSE)
        torch.testing.assert_close(got.values, want.values, **_CLOSE)


@pytest.mark.parametrize("family", _SOME_FAMILIES)
@pytest.mark.parametrize("cut", [1, 9])
@torch.no_grad()
def test_matched_split_replaces_rows_before_the_cut(family, cut):
    model, ids = _predicting(family), random_ids(2, _LENGTH)
    base = model.base
    keys, values = _predicted_raw(model, ids[:, :cut])
    with replaced_projections(base, keys, values):
        expected = base(ids, use_cache=False).logits[:, cut:]
    sequences = describe_batch(ids, None)
    predicted = model.predict(model.read_auxiliary(ids[:, :cut], sequences[:cut]))
    logits = model.continue_from(predicted, ids, sequences)
    torch.testing.assert_close(logits, expected, **_CLOSE)


@torch.no_grad()
def test_predicted_keys_are_normed_and_not_rotated():
    base = tiny_model("qwen3")
    model, ids = predicting_model(base), random_ids(2, 6)
    raw, values = _predicted_raw(model, ids)
    for layer, (keys, own) in enumerate(model(ids).predicted):
        norm = base.model.layers[layer].self_attn.k_norm
        expected = norm(raw[layer].unflatten(-1, (2, 16)))
        torch.testing.assert_close(keys, expected.transpose(1, 2), **_CLOSE)
        expected = values[layer].unflatten(-1, (2, 16)).transpose(1, 2)
        torch.testing.assert_close(own, expected, **_CLOSE)


def test_a_layer_map_of_ones_own():
    base = tiny_model("llama")
    auxiliary = build_auxiliary(base, keep=[0, 1, 2])
    model = KVPredictionModel(base, auxiliary, layer_map=[2, 1, 1, 0])
    assert model.predictor.features.layer_map == [2, 1, 1, 0]
    ids = random_ids(1, 5)
    keys, values = _predicted_raw(model, ids)
    with torch.no_grad(), replaced_projections(base, keys, values):
        expected = base(ids, use_cache=False).logits
    torch.testing.assert_close(model(ids).logits, expected, **_CLOSE)


@pytest.mark.parametrize("layer_map", [[0, 0, 1], [0, 0, 1, 2], [0, 0, 1, -1]])
def test_a_layer_map_that_does_not_fit_is_refused(layer_map):
    base = tiny_model("llama")
    with pytest.raises(ConfigurationError, match=r"must name one of 2|can't predict 4 base"):
        KVPredictionModel(base, build_auxiliary(base, keep=[0, 2]), layer_map=layer_map)


@pytest.mark.parametrize("setting", [{"features": "colour"}, {"init": "zeros"}])
def test_unknown_settings_are_refused(setting):
    base = tiny_model("llama")
    with pytest.raises(ConfigurationError, match="unknown"):
        KVPredictionModel(base, build_auxiliary(base), **setting)


# -- causality -----------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("t", [6, _LENGTH - 1])
@torch.no_grad()
def test_a_changed_token_moves_no_earlier_logit(family, t):
    model = _predicting(family)
    ids = random_ids(1, _LENGTH)
    changed = ids.clone()
    changed[0, t] = (ids[0, t] + 1) % 128
    before, after = model(ids), model(changed)
    # Mixtures of experts compute the tokens of an expert together, and their number changes what
    # is rounded.
    close = partial(torch.testing.assert_close, atol=1e-5, rtol=1e-5)
    close(before.logits[:, :t], after.logits[:, :t])
    close(before.auxiliary_logits[:, :t], after.auxiliary_logits[:, :t])
    assert not torch.allclose(before.logits[:, t], after.logits[:, t], atol=1e-3)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "qwen3"])
def test_no_gradient_runs_backwards_in_time(family):
    model = predicting_model(tiny_model(family))
    embedded = []
    for network in (model.base, model.auxiliary.model):
        network.get_input_embeddings().register_forward_hook(
            lambda _m, _a, out: embedded.append(out.detach().requires_grad_()) or embedded[-1]
        )
    ids, t = random_ids(1, _LENGTH), 6
    model(ids).logits[:, t].sum().backward()
    assert len(embedded) == 2
    for hidden in embedded:
        reach = hidden.grad[0].abs().sum(-1)
        assert not reach[t + 1 :].any()
        assert float(reach[t]) > 0
    # The base sees earlier tokens through the auxiliary's rows, and never through its own.
    base, auxiliary = sorted(
        (hidden.grad[0, :t].abs().sum(-1) for hidden in embedded), key=lambda reach: reach.sum()
    )
    assert not base.any()
    assert bool((auxiliary > 0).all())


# -- training ------------------------------------------------------------------------------------


def _published_loss(model: KVPredictionModel, ids: torch.Tensor) -> torch.Tensor:
    """Cross-entropies of base and auxiliary and the distance of predicted to exact rows."""
    sequences = describe_batch(ids, None)
    output, exact = model(ids), model.read_base(ids, sequences)
    loss = sum(
        F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        for logits in (output.logits, output.auxiliary_logits)
    )
    for layer, (keys, values) in enumerate(output.predicted):
        loss = loss + mean_absolute_error(keys, exact.keys[layer], sequences.real)
        merged = values.transpose(1, 2).flatten(2)
        loss = loss + (merged - exact.values[layer]).abs().mean()
    return loss


@pytest.mark.parametrize("family", FAMILIES)
def test_training_reaches_all_that_is_trained_and_nothing_of_the_base(family):
    base = tiny_model(family)
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    model = predicting_model(base).train()
    trained = [p for p in model.parameters() if p.requires_grad]
    assert len(trained) == len([*model.auxiliary.parameters(), *model.predictor.parameters()])
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    losses = []
    for step in range(3):
        optimizer.zero_grad()
        loss = _published_loss(model, random_ids(4, _LENGTH, seed=step % 2))
        loss.backward()
        if step == 0:
            _check_every_gradient(model)
        assert all(p.grad is None for p in base.parameters())
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[2] < losses[0]
    after = base.state_dict()
    assert set(before) == set(after)
    assert all(torch.equal(before[name], after[name]) for name in before)


def _check_every_gradient(model: KVPredictionModel) -> None:
    for name, parameter in [
        *model.auxiliary.named_parameters(),
        *model.predictor.named_parameters(),
    ]:
        assert parameter.grad is not None, name
        assert bool(parameter.grad.isfinite().all()), name
        assert bool(parameter.grad.any()), name


def test_the_base_stays_in_eval_mode():
    base = tiny_model("gpt2", attn_pdrop=0.5, resid_pdrop=0.5, embd_pdrop=0.5).train()
    model = predicting_model(base)
    assert not base.training
    for training in (True, False, True):
        model.train(training)
        assert not any(module.training for module in base.modules())
        assert model.predictor.training is training
        assert all(m.training is training for m in model.auxiliary.modules())
    model.train()
    ids = random_ids(1, 8)
    sequences = describe_batch(ids, None)
    first = model.read_base(ids, sequences, logits_from=0).logits
    assert torch.equal(first, model.read_base(ids, sequences, logits_from=0).logits)


def test_train_returns_the_model():
    model = predicting_model(tiny_model("llama"))
    assert model.train() is model
    assert model.eval() is model


def test_the_base_is_frozen_and_the_rest_is_not():
    model = predicting_model(tiny_model("llama"))
    assert not any(p.requires_grad for p in model.base.parameters())
    assert all(p.requires_grad for p in model.auxiliary.parameters())
    assert all(p.requires_grad for p in model.predictor.parameters())


def test_exact_rows_ask_no_gradient_and_predicted_ones_do():
    model, ids = predicting_model(tiny_model("llama")), random_ids(1, 5)
    rows = model.read_base(ids, describe_batch(ids, None), logits_from=0)
    assert not any(t.requires_grad for t in (*rows.keys, *rows.values, rows.logits))
    assert all(t.requires_grad for pair in model(ids).predicted for t in pair)


# -- key norm ------------------------------------------------------------------------------------


def _scaled(model: KVPredictionModel, ids: torch.Tensor, part: str) -> tuple:
    with torch.no_grad():
        before = model(ids).logits, model.prefill(ids).logits
        for linear in getattr(model.predictor, part):
            linear.weight.mul_(10.0)
            linear.bias.mul_(10.0)
        return before, (model(ids).logits, model.prefill(ids).logits)


@pytest.mark.parametrize("family", KEY_NORM_FAMILIES)
def test_with_key_norm_the_scale_of_key_maps_does_not_matter(family):
    model = predicting_model(tiny_model(family, weight_scale=8.0))
    before, after = _scaled(model, random_ids(2, _LENGTH), "keys")
    for a, b in zip(before, after, strict=True):
        # What is left is the norm's epsilon.
        torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "phi"])
def test_without_key_norm_the_scale_of_key_maps_matters(family):
    model = predicting_model(tiny_model(family, weight_scale=8.0))
    before, after = _scaled(model, random_ids(2, _LENGTH), "keys")
    for a, b in zip(before, after, strict=True):
        assert float((a - b).abs().max()) > 1e-2


def test_the_scale_of_value_maps_always_matters():
    model = predicting_model(tiny_model("qwen3", weight_scale=8.0))
    before, after = _scaled(model, random_ids(2, _LENGTH), "values")
    for a, b in zip(before, after, strict=True):
        assert float((a - b).abs().max()) > 1e-2


# -- padding and packing -------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_packed_documents_are_read_as_if_alone(family):
    model = _predicting(family)
    documents = [random_ids(n, seed=n) for n in (11, 1, 9)]
    ids = torch.cat([*documents, torch.zeros(3, dtype=torch.long)])[None]
    numbers = torch.tensor([[0] * 11 + [1] + [2] * 9 + [-1] * 3])
    together = model(ids, document_ids=numbers)
    start = 0
    for document in documents:
        alone = model(document[None])
        rows = slice(start, start + len(document))
        torch.testing.assert_close(together.logits[:, rows], alone.logits, **_CLOSE)
        torch.testing.assert_close(
            together.auxiliary_logits[:, rows], alone.auxiliary_logits, **_CLOSE
        )
        for (keys, values), (own_keys, own_values) in zip(
            together.predicted, alone.predicted, strict=True
        ):
            torch.testing.assert_close(keys[:, :, rows], own_keys, **_CLOSE)
            torch.testing.assert_close(values[:, :, rows], own_values, **_CLOSE)
        start += len(document)


@torch.no_grad()
def test_packed_documents_are_refused_where_positions_are_a_bias():
    """The family builds its bias from a plain mask, which can't say who belongs together."""
    model = predicting_model(tiny_model("bloom"))
    with pytest.raises(UnsupportedFamilyError) as error:
        model(random_ids(1, 6), document_ids=torch.tensor([[0, 0, 0, 1, 1, 1]]))
    assert "\n" not in str(error.value)


@torch.no_grad()
def test_packed_documents_with_a_window():
    model = predicting_model(tiny_model("mistral", sliding_window=4))
    documents = [random_ids(n, seed=n) for n in (9, 7)]
    numbers = torch.tensor([[0] * 9 + [1] * 7])
    together = model(torch.cat(documents)[None], document_ids=numbers).logits
    for document, rows in zip(documents, (slice(0, 9), slice(9, 16)), strict=True):
        torch.testing.assert_close(together[:, rows], model(document[None]).logits, **_CLOSE)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "qwen3"])
@torch.no_grad()
def test_exact_rows_of_packed_documents_and_the_matched_split(family):
    base = tiny_model(family)
    model = identity_model(base)
    documents = [random_ids(n, seed=n) for n in (11, 9)]
    ids = torch.cat(documents)[None]
    numbers = torch.tensor([[0] * 11 + [1] * 9])
    sequences = describe_batch(ids, None, numbers)
    exact = model.read_base(ids, sequences, logits_from=0)
    alone = torch.cat([base(d[None], use_cache=False).logits for d in documents], dim=1)
    torch.testing.assert_close(exact.logits, alone, **_CLOSE)
    for cut in (5, 11, 15):
        predicted = model.predict(model.read_auxiliary(ids[:, :cut], sequences[:cut]))
        logits = model.continue_from(predicted, ids, sequences)
        torch.testing.assert_close(logits, alone[:, cut:], **_CLOSE)


@pytest.mark.parametrize("family", _SOME_FAMILIES)
@torch.no_grad()
def test_right_padding_does_not_matter(family):
    model = _predicting(family)
    ids = random_ids(2, _LENGTH)
    mask = torch.ones_like(ids)
    mask[0, 9:] = 0
    padded = model(ids, mask)
    other = ids.clone()
    other[0, 9:] = 5
    torch.testing.assert_close(padded.logits[0, :9], model(ids[:1, :9]).logits[0], **_CLOSE)
    torch.testing.assert_close(padded.logits[1], model(ids[1:]).logits[0], **_CLOSE)
    torch.testing.assert_close(padded.logits[0, :9], model(other, mask).logits[0, :9], **_CLOSE)


@pytest.mark.parametrize("family", _SOME_FAMILIES)
@torch.no_grad()
def test_left_padding_does_not_matter_in_training(family):
    model = _predicting(family)
    prompts = [random_ids(n, seed=n) for n in (1, 5, _LENGTH)]
    ids, mask = left_padded(prompts)
    logits = model(ids, mask).logits
    for row, prompt in enumerate(prompts):
        alone = model(prompt[None]).logits[0]
        torch.testing.assert_close(logits[row, -len(prompt) :], alone, **_CLOSE)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "qwen3"])
def test_packed_documents_under_autocast(family):
    model = predicting_model(tiny_model(family))
    ids = random_ids(2, 12)
    numbers = torch.tensor([[0] * 5 + [1] * 4 + [-1] * 3, [0] * 12])
    with torch.no_grad():
        expected = model(ids, document_ids=numbers).logits
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(ids, document_ids=numbers)
        loss = output.logits.float().square().mean()
    loss.backward()
    real = numbers >= 0
    got = output.logits.detach().float()[real]
    torch.testing.assert_close(got, expected[real], atol=6e-2, rtol=6e-2)
    assert all(bool(p.grad.isfinite().all()) for p in model.predictor.parameters())


def test_describing_a_batch():
    ids = random_ids(2, 4)
    assert describe_batch(ids, None).all_real
    assert describe_batch(ids, torch.ones(2, 4)).all_real
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])
    assert torch.equal(describe_batch(ids, mask).real, mask.bool())
    numbers = torch.tensor([[0, 0, 1, 1], [0, 0, 0, -1]])
    assert torch.equal(describe_batch(ids, None, numbers).document_ids, numbers)


# -- the predicted cache -------------------------------------------------------------------------


@pytest.mark.parametrize("static_length", [None, 16])
@torch.no_grad()
def test_predicted_cache_holds_no_number_that_is_not_finite(static_length):
    model = predicting_model(tiny_model("gemma2"))
    mask = torch.tensor([[0] * 5, [0, 0, 1, 1, 1], [1] * 5])
    cache = predicted_cache(
        model, random_ids(3, 5), describe_batch(random_ids(3, 5), mask), static_length=static_length
    )
    for layer in cache.layers:
        assert layer.keys.shape[2] == (static_length or 5)
        for rows in (layer.keys[:, :, :5], layer.values[:, :, :5]):
            assert bool(rows.isfinite().all())
            assert not rows[0].any()
            assert not rows[1, :, :2].any()
            assert bool(rows[1, :, 2:].abs().sum((0, 2)).all())


@pytest.mark.parametrize("static_length", [None, 4])
def test_predicted_cache_of_nothing(static_length):
    model = predicting_model(tiny_model("llama"))
    nothing = torch.empty(2, 0, dtype=torch.long)
    cache = predicted_cache(
        model, nothing, describe_batch(nothing, None), static_length=static_length
    )
    assert int(cache.get_seq_length()) == 0


def test_auxiliary_reads_only_as_deep_as_the_map_needs():
    base = tiny_model("llama")
    auxiliary = build_auxiliary(base, keep=[0, 1, 2, 3])
    model = KVPredictionModel(base, auxiliary, layer_map=[0, 0, 1, 1])
    calls = []
    for layer in auxiliary.adapter.layers:
        layer.register_forward_pre_hook(lambda *_: calls.append(1))
    model.prefill(random_ids(1, 6))
    assert len(calls) == 2


def test_a_mask_next_to_document_ids_counts_as_well():
    ids = random_ids(1, 8)
    documents, mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]]), torch.ones(1, 8)
    mask[:, 6:] = 0
    sequences = describe_batch(ids, mask, documents)
    assert sequences.real.tolist() == [[True] * 6 + [False] * 2]
    assert sequences.position_ids[0, :6].tolist() == [0, 1, 2, 0, 1, 2]
