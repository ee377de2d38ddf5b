"""Prompts are checked before anything is computed, and find what is known of them already."""

from __future__ import annotations

import pytest
import torch

from lit_kvpred.errors import PromptError
from lit_kvpred.generation.prompt import describe_prompt
from lit_kvpred.model.family import FamilyAdapter
from tests.tiny_models import left_padded, predicting_model, random_ids, tiny_model


def _adapter() -> FamilyAdapter:
    return FamilyAdapter(tiny_model("gpt2"))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 0), "the prompt is empty"),
        ((0, 4), "the prompt is empty"),
        ((3,), "add a batch dimension"),
        ((1, 2, 3), "add a batch dimension"),
    ],
)
def test_an_empty_prompt_is_refused(shape, message):
    with pytest.raises(PromptError, match=message):
        describe_prompt(_adapter(), torch.ones(shape, dtype=torch.long), None)


def test_a_list_is_refused():
    with pytest.raises(PromptError, match="must be a tensor, got list; tokenize with return_tens"):
        describe_prompt(_adapter(), [[1, 2]], None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex128])
def test_what_holds_no_ids_is_refused(dtype):
    with pytest.raises(PromptError, match="must hold token ids, whole numbers, got [a-z]+[0-9]*;"):
        describe_prompt(_adapter(), torch.ones(1, 3, dtype=dtype), None)


@pytest.mark.parametrize("mask", [[[1, 1, 1]], "111", 1])
def test_a_mask_that_is_no_tensor_is_refused(mask):
    with pytest.raises(PromptError, match="attention_mask must be a tensor, got"):
        describe_prompt(_adapter(), random_ids(1, 3), mask)


@pytest.mark.parametrize("mask", [torch.tensor([[0.0, float("nan"), 1]]), torch.ones(1, 3) * 1j])
def test_a_mask_without_numbers_is_refused(mask):
    with pytest.raises(PromptError, match="attention_mask holds no numbers; give 1 for tokens"):
        describe_prompt(_adapter(), random_ids(1, 3), mask)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_ids_may_be_of_any_whole_type(dtype):
    model = predicting_model(tiny_model("llama"))
    ids = random_ids(2, 5)
    expected = model.generate(ids, max_new_tokens=3)
    answer = model.generate(ids.to(dtype), max_new_tokens=3)
    assert answer.answers == expected.answers
    assert torch.equal(answer.sequences, expected.sequences)


@pytest.mark.parametrize("wrong", [128, 5000, -1])
def test_an_unknown_token_is_refused(wrong):
    with pytest.raises(PromptError, match=f"token id {wrong} .* knows ids below 128"):
        describe_prompt(_adapter(), torch.tensor([[4, wrong, 5]]), None)


def test_a_mask_of_another_shape_is_refused():
    with pytest.raises(PromptError, match=r"attention_mask \(1, 3\) must have the shape"):
        describe_prompt(_adapter(), random_ids(1, 4), torch.ones(1, 3))


@pytest.mark.parametrize("mask", [[1, 1, 0], [1, 0, 1], [0, 1, 0]])
def test_padding_on_the_right_or_inside_is_refused(mask):
    with pytest.raises(PromptError, match="padded on the left only"):
        describe_prompt(_adapter(), random_ids(1, 3), torch.tensor([mask]))


def test_a_prompt_of_nothing_but_padding_is_refused():
    mask = torch.tensor([[1, 1, 1], [0, 0, 0]])
    with pytest.raises(PromptError, match="all padding"):
        describe_prompt(_adapter(), random_ids(2, 3), mask)


@pytest.mark.parametrize(
    ("length", "new", "fits"), [(256, 0, True), (257, 0, False)] + [(250, 6, True), (250, 7, False)]
)
def test_a_prompt_beyond_the_positions_is_refused(length, new, fits):
    adapter, ids = _adapter(), random_ids(1, length)
    if fits:
        assert describe_prompt(adapter, ids, None, new).sequences.position_ids.shape == (1, length)
        return
    with pytest.raises(PromptError, match=rf"need {length + new} positions \({length} \+ {new}\)"):
        describe_prompt(adapter, ids, None, new)


def test_padding_takes_no_position():
    ids, mask = left_padded([random_ids(256), random_ids(3)])
    wide = torch.cat([torch.zeros(2, 9, dtype=torch.long), ids], dim=1)
    mask = torch.cat([torch.zeros(2, 9, dtype=torch.long), mask], dim=1)
    assert int(describe_prompt(_adapter(), wide, mask).sequences.position_ids.max()) == 255
