"""The cache that appends in place holds what concatenation would, whatever happens in between."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DynamicCache

from lit_kvpred.model.caches import GrowingCache, n_rows, roll_back, shift_rows_right
from tests.tiny_models import random_ids, tiny_model

OPERATIONS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 90)),
    st.tuples(st.just("roll back"), st.integers(0, 40)),
    st.tuples(st.just("shift"), st.integers(0, 3)),
    st.tuples(st.just("select"), st.sampled_from([[1, 0, 1], [0, 1], [2, 2]])),
    st.tuples(st.just("repeat"), st.integers(1, 2)),
    st.tuples(st.just("reset"), st.none()),
)


def _apply(cache: DynamicCache, operation: str, argument, seed: int, batch: int) -> None:
    if operation == "append":
        generator = torch.Generator().manual_seed(seed)
        for layer in range(2):
            keys = torch.randn(batch, 2, argument, 4, generator=generator)
            cache.update(keys, keys[..., :3] + 1, layer)
    elif operation == "roll back":
        roll_back(cache, min(argument, n_rows(cache)))
    elif operation == "shift":
        shift_rows_right(cache, torch.arange(batch) * argument % 3)
    elif operation == "select":
        cache.batch_select_indices(torch.tensor([i % batch for i in argument]))
    elif operation == "repeat":
        cache.batch_repeat_interleave(argument)
    else:
        cache.reset()


@settings(max_examples=60, deadline=None)
@given(st.lists(OPERATIONS, min_size=1, max_size=12))
def test_holds_what_concatenation_holds(operations):
    growing, plain = GrowingCache(), DynamicCache()
    with torch.no_grad():
        for seed, (operation, argument) in enumerate(operations):
            if operation != "append" and n_rows(plain) == 0:
                continue
            batch = plain.layers[0].keys.shape[0] if n_rows(plain) else 2
            if operation == "repeat" and batch > 8:
                continue
            for cache in (growing, plain):
                _apply(cache, operation, argument, seed, batch)
            assert n_rows(growing) == n_rows(plain)
            for layer, reference in zip(growing.layers, plain.layers, strict=True):
                if n_rows(plain):
                    assert torch.equal(layer.keys, reference.keys)
                    assert torch.equal(layer.values, reference.values)


def test_appending_copies_no_earlier_row_and_rolled_back_rows_are_written_over():
    cache, rows = GrowingCache(), torch.randn(1, 2, 10, 4)
    with torch.no_grad():
        cache.update(rows, rows, 0)
        where = cache.layers[0].keys.data_ptr()
        for _ in range(5):
            cache.update(rows[:, :, :3], rows[:, :, :3], 0)
        assert cache.layers[0].keys.data_ptr() == where
        roll_back(cache, 20)
        cache.update(rows[:, :, 7:], rows[:, :, 7:], 0)
    assert cache.layers[0].keys.data_ptr() == where
    torch.testing.assert_close(
        cache.layers[0].keys, torch.cat([rows[:, :, :5], rows[:, :, 7:]], dim=2)
    )


def test_a_cache_made_in_inference_mode_can_be_decoded_from_outside_it():
    base, ids = tiny_model("llama"), random_ids(1, 9)
    cache = GrowingCache()
    with torch.inference_mode():
        base(ids[:, :8], cache=cache, use_cache=True)
    with torch.no_grad():
        logits = base(ids[:, 8:], cache=cache, use_cache=True).logits
        torch.testing.assert_close(logits[:, -1], base(ids).logits[:, -1])


@pytest.mark.parametrize("steps", [1, 3])
def test_gradients_flow_through_rows_that_are_appended_to(steps):
    rows = torch.randn(1, 2, 5, 4, requires_grad=True)
    cache = GrowingCache()
    cache.update(rows, rows, 0)
    for _ in range(steps):
        keys, values = cache.update(torch.randn(1, 2, 1, 4), torch.randn(1, 2, 1, 4), 0)
        (keys.square().sum() + values.sum()).backward(retain_graph=True)
    torch.testing.assert_close(rows.grad, steps * (2 * rows.detach() + 1))
