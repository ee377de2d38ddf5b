from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache

from lit_kvpred.model.caches import (
    ForwardStopped,
    RecordingCache,
    ReplayCache,
    empty_static_cache,
    filled_cache,
    n_rows,
    padding_mask,
    roll_back,
    shift_rows_right,
)
from tests.tiny_models import random_ids, tiny_model


def _rows(n_layers: int = 3, batch: int = 2, rows: int = 5) -> tuple[list, list]:
    keys = [torch.randn(batch, 2, rows, 4) for _ in range(n_layers)]
    values = [torch.randn(batch, 2, rows, 6) for _ in range(n_layers)]
    return keys, values


def _filled_static_cache(keys: list, values: list, max_length: int):
    cache = empty_static_cache(len(keys), max_length)
    for layer, (k, v) in enumerate(zip(keys, values, strict=True)):
        cache.update(k, v, layer)
    return cache


def _fill(kind: str, keys: list, values: list, max_length: int = 8):
    if kind == "dynamic":
        return filled_cache(keys, values)
    return _filled_static_cache(keys, values, max_length)


def test_recording_cache_keeps_every_row_where_the_family_uses_a_window():
    base = tiny_model("gemma2", sliding_window=4)
    ids = random_ids(2, 11)
    cache = RecordingCache()
    recorded = base(ids, cache=cache, use_cache=True).logits
    assert [layer.keys.shape[2] for layer in cache.layers] == [11] * 4
    # The window acts in the mask: the logits are those of a run without any cache.
    torch.testing.assert_close(recorded, base(ids, use_cache=False).logits)


@pytest.mark.parametrize("stop", [0, 2])
def test_recording_cache_stops_after_the_given_layer(stop):
    base = tiny_model("llama")
    ids = random_ids(1, 6)
    whole, stopped = RecordingCache(), RecordingCache(stop)
    base(ids, cache=whole, use_cache=True)
    with pytest.raises(ForwardStopped):
        base(ids, cache=stopped, use_cache=True)
    assert len(stopped.layers) == stop + 1
    for layer, reference in zip(stopped.layers, whole.layers, strict=False):
        assert torch.equal(layer.keys, reference.keys)
        assert torch.equal(layer.values, reference.values)


def test_replay_cache_answers_with_the_given_rows_and_claims_no_length():
    keys, values = _rows()
    cache = ReplayCache(keys, values)
    assert cache.get_seq_length() == 0
    for layer in range(3):
        got = cache.update(torch.zeros(2, 2, 5, 4), torch.zeros(2, 2, 5, 6), layer)
        assert got[0] is keys[layer]
        assert got[1] is values[layer]
    assert cache.get_mask_sizes(5, 0) == (5, 0)


@pytest.mark.parametrize("shape", [(2, 2, 4, 4), (1, 2, 5, 4), (2, 1, 5, 4), (2, 2, 5, 3)])
def test_replay_cache_refuses_rows_of_another_shape(shape):
    cache = ReplayCache(*_rows())
    with pytest.raises(ValueError, match="the decoder computed"):
        cache.update(torch.zeros(shape), torch.zeros(2, 2, 5, 6), 0)
    with pytest.raises(ValueError, match="the decoder computed"):
        cache.update(torch.zeros(2, 2, 5, 4), torch.zeros(shape), 0)


@pytest.mark.parametrize("make", [ReplayCache, filled_cache])
def test_keys_without_values_are_refused(make):
    keys, values = _rows()
    with pytest.raises(ValueError, match="zip"):
        make(keys, values[:-1])


def test_filled_cache_holds_the_rows_and_lets_gradients_through():
    keys, values = _rows()
    leaves = [k.requires_grad_() for k in keys]
    cache = filled_cache(keys, values)
    assert n_rows(cache) == 5
    new = cache.update(torch.ones(2, 2, 1, 4), torch.ones(2, 2, 1, 6), 1)
    torch.testing.assert_close(new[0][:, :, :5], keys[1])
    assert new[0].shape[2] == 6
    new[0].sum().backward()
    assert torch.equal(leaves[1].grad, torch.ones_like(keys[1]))
    assert leaves[0].grad is None


def test_filled_static_cache_holds_the_rows_first():
    keys, values = _rows()
    cache = _filled_static_cache(keys, values, 8)
    assert n_rows(cache) == 5
    for layer, (k, v) in enumerate(zip(keys, values, strict=True)):
        assert cache.layers[layer].keys.shape == (2, 2, 8, 4)
        assert torch.equal(cache.layers[layer].keys[:, :, :5], k)
        assert torch.equal(cache.layers[layer].values[:, :, :5], v)
        assert not cache.layers[layer].keys[:, :, 5:].any()


def test_empty_static_cache_keeps_full_length_for_windowed_families():
    base = tiny_model("gemma2", sliding_window=4)
    cache = empty_static_cache(4, 16)
    ids = random_ids(1, 11)
    logits = base(ids, cache=cache, use_cache=True).logits
    assert n_rows(cache) == 11
    assert [layer.keys.shape[2] for layer in cache.layers] == [16] * 4
    torch.testing.assert_close(logits, base(ids, use_cache=False).logits)


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("rows", [0, 1, 3, 5])
def test_roll_back_drops_the_last_rows(kind, rows):
    keys, values = _rows()
    cache = _fill(kind, keys, values)
    roll_back(cache, rows)
    assert n_rows(cache) == 5 - rows
    for layer, (k, v) in enumerate(zip(keys, values, strict=True)):
        held = 5 - rows
        assert torch.equal(cache.layers[layer].keys[:, :, :held], k[:, :, :held])
        assert torch.equal(cache.layers[layer].values[:, :, :held], v[:, :, :held])


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("rows", [-1, 6, 100])
def test_roll_back_refuses_rows_that_are_not_there(kind, rows):
    cache = _fill(kind, *_rows())
    with pytest.raises(ValueError, match=f"cannot roll back {rows} rows"):
        roll_back(cache, rows)
    assert n_rows(cache) == 5


def test_roll_back_of_an_empty_cache():
    for cache in (DynamicCache(), empty_static_cache(3, 4)):
        roll_back(cache, 0)
        assert n_rows(cache) == 0
        with pytest.raises(ValueError, match="holds 0"):
            roll_back(cache, 1)


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("rows", [1, 4, 9])
@torch.no_grad()
def test_logits_after_a_roll_back_are_those_of_the_shorter_text(kind, rows):
    base = tiny_model("gemma2", sliding_window=4)
    ids, wrong = random_ids(2, 9), random_ids(2, 9, seed=1)
    cache = RecordingCache() if kind == "dynamic" else empty_static_cache(4, 12)
    text = torch.cat([ids[:, : 9 - rows], wrong[:, :rows]], dim=1)
    base(text, cache=cache, use_cache=True)
    roll_back(cache, rows)
    logits = base(ids[:, 9 - rows :], cache=cache, use_cache=True).logits
    expected = base(ids, use_cache=False).logits[:, 9 - rows :]
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_shift_moves_each_batch_entry_by_its_own_amount(kind):
    keys, values = _rows(batch=4)
    cache = _fill(kind, keys, values)
    shifts = [0, 1, 3, 5]
    shift_rows_right(cache, torch.tensor(shifts))
    assert n_rows(cache) == 5
    for layer, (k, v) in enumerate(zip(keys, values, strict=True)):
        for b, shift in enumerate(shifts):
            for got, rows in ((cache.layers[layer].keys, k), (cache.layers[layer].values, v)):
                assert torch.equal(got[b, :, shift:5], rows[b, :, : 5 - shift])
                assert bool(got[b].isfinite().all())


def test_shift_leaves_free_static_slots_alone():
    cache = _filled_static_cache(*_rows(), 8)
    shift_rows_right(cache, torch.tensor([2, 0]))
    assert not any(layer.keys[:, :, 5:].any() for layer in cache.layers)


def test_shift_of_a_full_static_cache():
    keys, values = _rows()
    cache = _filled_static_cache(keys, values, 5)
    shift_rows_right(cache, torch.tensor([2, 0]))
    assert torch.equal(cache.layers[0].keys[0, :, 2:], keys[0][0, :, :3])
    assert torch.equal(cache.layers[0].keys[1], keys[0][1])


def test_padding_mask_covers_every_slot():
    visible = torch.tensor([[False, True, True, True, True], [True] * 5])
    everything = torch.ones(2, 5, dtype=torch.bool)
    dynamic, static = filled_cache(*_rows()), _filled_static_cache(*_rows(), 8)
    assert padding_mask(everything, dynamic) is None
    assert padding_mask(everything, _filled_static_cache(*_rows(), 5)) is None
    assert padding_mask(visible, dynamic).tolist() == [[0, 1, 1, 1, 1], [1] * 5]
    expected = [[0, 1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0, 0, 0]]
    assert padding_mask(visible, static).tolist() == expected
    assert padding_mask(everything, static).tolist() == [[1] * 5 + [0] * 3] * 2
