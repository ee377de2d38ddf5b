from __future__ import annotations

import pytest
import torch

from lit_kvpred.model.family import FamilyAdapter
from lit_kvpred.model.sequences import Sequences
from tests.tiny_models import tiny_model

_LEFT = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 1]])
_DOCUMENTS = torch.tensor(
    [
        [0, 0, 0, 1, 1, 1, 1, 2, -1, -1],
        [4, 4, 4, 4, 4, 4, 4, 4, 4, 4],
        [0, 1, 2, 2, 2, 2, 2, 2, 2, 2],
    ]
)


def _allowed(document_ids: torch.Tensor, window: int | None) -> torch.Tensor:
    """Which key each query may see, entry by entry."""
    batch, length = document_ids.shape
    allowed = torch.zeros(batch, length, length, dtype=torch.bool)
    for b in range(batch):
        for q in range(length):
            for k in range(q + 1):
                near = window is None or q - k < window
                allowed[b, q, k] = bool(document_ids[b, q] == document_ids[b, k]) and near
    return allowed


def test_unpadded_positions_count_up():
    sequences = Sequences.unpadded(2, 4, torch.device("cpu"))
    assert sequences.position_ids.tolist() == [[0, 1, 2, 3]] * 2
    assert sequences.all_real
    assert sequences.real.shape == (2, 4)


def test_left_padding_does_not_count():
    sequences = Sequences.padded(_LEFT)
    real = [
        row[mask].tolist() for row, mask in zip(sequences.position_ids, _LEFT.bool(), strict=True)
    ]
    assert real == [[0, 1, 2], [0, 1, 2, 3, 4], [0]]
    assert int(sequences.position_ids.min()) == 0
    assert not sequences.all_real
    assert torch.equal(sequences.real, _LEFT.bool())


def test_right_padding_does_not_count():
    sequences = Sequences.padded(_LEFT.flip(1))
    assert sequences.position_ids[0, :3].tolist() == [0, 1, 2]
    assert int(sequences.position_ids.max()) == 4


def test_packed_positions_restart_at_every_document():
    sequences = Sequences.packed(_DOCUMENTS)
    assert sequences.position_ids[0, :8].tolist() == [0, 1, 2, 0, 1, 2, 3, 0]
    assert sequences.position_ids[1].tolist() == list(range(10))
    assert sequences.position_ids[2].tolist() == [0, 0, 0, 1, 2, 3, 4, 5, 6, 7]
    assert torch.equal(sequences.real, _DOCUMENTS >= 0)


@pytest.mark.parametrize("document", [0, 7])
def test_rows_of_one_document_need_no_mask(document):
    sequences = Sequences.packed(torch.full((2, 6), document))
    adapter = FamilyAdapter(tiny_model("llama"))
    assert sequences.document_ids is None
    assert sequences.attention_mask(adapter) is None
    assert sequences.position_ids.tolist() == [list(range(6))] * 2


def test_a_slice_keeps_positions_padding_and_documents():
    for sequences in (Sequences.packed(_DOCUMENTS), Sequences.padded(_LEFT)):
        part = sequences[1:4]
        assert torch.equal(part.position_ids, sequences.position_ids[:, 1:4])
        assert torch.equal(part.real, sequences.real[:, 1:4])
        if sequences.document_ids is not None:
            assert torch.equal(part.document_ids, sequences.document_ids[:, 1:4])


def test_plain_rows_take_the_fast_path_and_padding_a_plain_mask():
    adapter = FamilyAdapter(tiny_model("llama"))
    unpadded = Sequences.unpadded(2, 4, torch.device("cpu"))
    assert unpadded.attention_mask(adapter) is None
    mask = Sequences.padded(_LEFT).attention_mask(adapter)
    assert mask.dtype == torch.long
    assert torch.equal(mask, _LEFT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("family", "window"), [("llama", None), ("mistral", 3), ("phi3", 3)])
def test_packed_mask_of_a_family_with_one_layer_type(family, window, dtype):
    overrides = {} if window is None else {"sliding_window": window}
    adapter = FamilyAdapter(tiny_model(family, **overrides).to(dtype))
    mask = Sequences.packed(_DOCUMENTS).attention_mask(adapter)
    assert mask.dtype == dtype
    assert mask.shape == (3, 1, 10, 10)
    assert torch.equal(mask[:, 0] == 0, _allowed(_DOCUMENTS, window))
    assert set(mask.unique().tolist()) == {0.0, torch.finfo(dtype).min}


@pytest.mark.parametrize("family", ["gemma2", "gemma3_text", "cohere2", "gpt_oss"])
def test_packed_masks_of_a_family_with_layer_types(family):
    adapter = FamilyAdapter(tiny_model(family, sliding_window=3))
    masks = Sequences.packed(_DOCUMENTS).attention_mask(adapter)
    assert set(masks) == {"sliding_attention", "full_attention"}
    assert torch.equal(masks["sliding_attention"][:, 0] == 0, _allowed(_DOCUMENTS, 3))
    assert torch.equal(masks["full_attention"][:, 0] == 0, _allowed(_DOCUMENTS, None))


@pytest.mark.parametrize("first", [0, 1, 4, 9])
def test_packed_mask_of_later_queries(first):
    adapter = FamilyAdapter(tiny_model("gemma2", sliding_window=3))
    masks = Sequences.packed(_DOCUMENTS).attention_mask(adapter, first)
    for kind, window in (("sliding_attention", 3), ("full_attention", None)):
        expected = _allowed(_DOCUMENTS, window)[:, first:]
        assert torch.equal(masks[kind][:, 0] == 0, expected)


def test_no_row_of_a_packed_mask_is_masked_whole():
    adapter = FamilyAdapter(tiny_model("llama"))
    mask = Sequences.packed(_DOCUMENTS).attention_mask(adapter)
    assert bool((mask == 0).any(-1).all())


def test_previous_rows_stay_within_a_document_and_skip_padding():
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 0, 0, 1]])
    previous = Sequences.padded(mask).previous_rows()
    # At padding any row will do.
    assert previous[0, 2:].tolist() == [-1, 2, 3]
    assert previous[1, [0, 1, 4]].tolist() == [-1, 0, 1]
    packed = Sequences.packed(torch.tensor([[0, 0, 1, 1, 1, -1]]))
    assert packed.previous_rows()[0, :5].tolist() == [-1, 0, -1, 2, 3]
    # Within a slice the first row has none, wherever it stands.
    assert Sequences.unpadded(1, 6, mask.device)[4:].previous_rows().tolist() == [[-1, 0]]
