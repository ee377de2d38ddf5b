"""A prefix of a real pretrained base: exact slices, exact text, exact second turns."""

from __future__ import annotations

import pytest
import torch

from lit_kvpred.model.auxiliary import build_auxiliary
from lit_kvpred.model.caches import RecordingCache
from lit_kvpred.model.kv_prediction import KVPredictionModel
from lit_kvpred.sirius.correction import Correction
from tests.real.test_smollm2 import TEXT

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def ids(real_tokenizer) -> torch.Tensor:
    return real_tokenizer(TEXT, return_tensors="pt")["input_ids"]


@pytest.fixture(scope="module")
def model(real_base, ids) -> KVPredictionModel:
    auxiliary = build_auxiliary(real_base, "prefix", keep=15)
    model = KVPredictionModel(real_base, auxiliary, exact_tail=4, rank=64)
    model.fit_least_squares([ids], ridge=1e-2)
    return model.eval()


def _plain(model, ids, new: int) -> torch.Tensor:
    return model.base.generate(ids, max_new_tokens=new, do_sample=False, pad_token_id=0)


@pytest.mark.parametrize("slice_rows", [1, 7, 64, None])
def test_slices_of_any_size_leave_the_plain_cache_and_text(model, ids, slice_rows):
    prompt = ids[:, :70] if slice_rows == 1 else ids
    output = model.generate(
        prompt,
        max_new_tokens=16,
        correction=Correction(period=4, threshold=1.1, slice_rows=slice_rows),
        keep_context=True,
    )
    assert torch.equal(output.sequences, _plain(model, prompt, 16))
    reference = RecordingCache()
    with torch.no_grad():
        model.base(output.context.token_ids[None], cache=reference, use_cache=True)
    for (keys, values), layer in zip(output.context.rows, reference.layers, strict=True):
        assert (keys - layer.keys).abs().max() < 1e-4 * layer.keys.abs().max()
        assert (values - layer.values).abs().max() < 1e-4 * layer.values.abs().max()


def test_a_second_turn_is_the_plain_one(model, ids):
    correction = Correction(period=4, threshold=1.1)
    first = model.generate(ids, max_new_tokens=12, correction=correction, keep_context=True)
    second = torch.cat([first.sequences, ids[:, 20:60]], dim=1)
    output = model.generate(second, context=first.context, max_new_tokens=12, correction=correction)
    assert torch.equal(output.sequences, _plain(model, second, 12))


def test_a_tail_over_the_whole_prompt_is_the_base(real_base, ids):
    auxiliary = build_auxiliary(real_base, "prefix", keep=15)
    model = KVPredictionModel(real_base, auxiliary, exact_tail=ids.shape[1])
    with torch.inference_mode():
        exact = real_base(ids, logits_to_keep=1).logits[:, -1]
    assert (model.prefill(ids).logits - exact).abs().max() < 2e-3


def test_the_artefact_is_the_projections_alone(model, tmp_path):
    model.save_pretrained(tmp_path / "artefact")
    size = sum(f.stat().st_size for f in (tmp_path / "artefact").rglob("*"))
    parameters = sum(p.numel() for p in model.predictor.parameters())
    assert 4 * parameters < size < 4 * parameters + 100_000
