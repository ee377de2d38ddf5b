"""The invariants that matter, on a real pretrained base."""

from __future__ import annotations

import gc

import psutil
import pytest
import torch

from lit_kvpred.generation.events import TokenEvent
from lit_kvpred.generation.prefill import exact_prefill
from lit_kvpred.generation.prompt import describe_prompt
from lit_kvpred.losses import reduce_layers
from lit_kvpred.model.auxiliary import build_auxiliary
from lit_kvpred.model.caches import RecordingCache
from lit_kvpred.model.kv_prediction import KVPredictionModel
from lit_kvpred.model.sequences import Sequences
from lit_kvpred.objective import Objective, training_losses
from lit_kvpred.sirius.correction import Correction

pytestmark = pytest.mark.real

TEXT = """import os

def walk(folder):
    \"\"\"Yield every file below a folder, in a stable order.\"\"\"
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if os.path.isdir(path):
            yield from walk(path)
        else:
            yield path

def size(folder):
    \"\"\"Total size of all files below a folder, in bytes.\"\"\"
    return sum(os.path.getsize(path) for path in walk(folder))

class Counter:
    def __init__(self):
        self.counts = {}

    def add(self, key):
        self.counts[key] = self.counts.get(key, 0) + 1
"""


@pytest.fixture(scope="module")
def ids(real_tokenizer) -> torch.Tensor:
    return real_tokenizer(TEXT, return_tensors="pt")["input_ids"]


@pytest.fixture(scope="module")
def fitted(real_base, ids) -> KVPredictionModel:
    """KVP-LP-0.50 in closed form on a handful of rows."""
    model = KVPredictionModel(real_base, build_auxiliary(real_base, "pruned", keep=0.5))
    model.fit_least_squares([ids], ridge=1e-2)
    return model.eval()


def test_identity_predictor_reproduces_the_base(real_base, ids):
    model = KVPredictionModel(
        real_base, build_auxiliary(real_base, "pruned", keep=list(range(30)))
    ).eval()
    model.predictor.set_identity_()
    exact = exact_prefill(model.adapter, describe_prompt(model.adapter, ids, None))
    predicted = model.prefill(ids)
    assert (predicted.logits - exact.logits).abs().max() < 2e-3
    for ours, theirs in zip(predicted.cache.layers, exact.cache.layers, strict=True):
        scale = theirs.keys.abs().max()
        assert (ours.keys - theirs.keys).abs().max() < 1e-4 * scale
        assert (ours.values - theirs.values).abs().max() < 1e-4 * theirs.values.abs().max()


def test_least_squares_beats_the_published_init(real_base, fitted, ids):
    objective = Objective(base_weight=0, auxiliary_weight=0, consistency_weight=1)
    sequences = Sequences.unpadded(*ids.shape, ids.device)
    default = KVPredictionModel(real_base, fitted.auxiliary)
    with torch.no_grad():
        losses = [
            float(training_losses(m, objective, ids, sequences)["loss"]) for m in (default, fitted)
        ]
    assert losses[1] < 0.5 * losses[0]
    assert reduce_layers(torch.ones(30), torch.ones(30), "mean") == 2.0


@pytest.mark.parametrize("static_cache", [False, True])
def test_strict_correction_is_the_plain_greedy_text(fitted, ids, static_cache):
    plain = fitted.base.generate(ids, max_new_tokens=24, do_sample=False, pad_token_id=0)
    corrected = fitted.generate(
        ids,
        max_new_tokens=24,
        correction=Correction(period=8, threshold=1.5),
        static_cache=static_cache,
    )
    assert torch.equal(corrected.sequences, plain)
    assert corrected.stats.retracted == corrected.stats.drafted == 8


def test_left_padding_changes_nothing(fitted, ids):
    short = ids[:, -60:]
    padded = torch.zeros(2, 80, dtype=torch.long)
    mask = torch.zeros_like(padded)
    padded[0], mask[0] = ids[0, :80], 1
    padded[1, 20:], mask[1, 20:] = short[0], 1
    batch = fitted.prefill(padded, mask).logits
    for row, alone in enumerate((ids[:, :80], short)):
        logits = fitted.prefill(alone).logits[0]
        assert (batch[row] - logits).abs().max() < 5e-3
        assert batch[row].argmax() == logits.argmax()


def test_released_auxiliary_frees_its_memory_while_decoding(fitted, ids):
    """Resident memory while decoding is the base's alone; the next prompt gets the same answer."""
    process = psutil.Process()
    modules = (fitted.auxiliary, fitted.predictor)
    weights = sum(p.numel() * p.element_size() for m in modules for p in m.parameters())

    def peak_while_decoding(release: bool) -> tuple[int, list[int]]:
        gc.collect()
        peak, tokens = 0, []
        for event in fitted.stream(ids, max_new_tokens=6, release_auxiliary=release):
            assert isinstance(event, TokenEvent)
            tokens.append(event.token)
            # The first token is shown before the weights go.
            if len(tokens) > 1:
                peak = max(peak, process.memory_info().rss)
        return peak, tokens

    kept, answer = peak_while_decoding(False)
    released, same = peak_while_decoding(True)
    assert kept - released > 0.8 * weights
    assert same == answer
    _, again = peak_while_decoding(False)
    assert again == answer


def test_artefact_round_trip(fitted, ids, tmp_path):
    fitted.save_pretrained(tmp_path / "artefact")
    loaded = KVPredictionModel.from_pretrained(tmp_path / "artefact", fitted.base)
    assert torch.equal(loaded.prefill(ids).logits, fitted.prefill(ids).logits)
    size = sum(f.stat().st_size for f in (tmp_path / "artefact").rglob("*") if f.is_file())
    base_bytes = sum(p.numel() * 4 for p in fitted.base.parameters())
    assert size < 0.75 * base_bytes


def test_predicted_cache_has_the_form_of_an_ordinary_one(fitted, ids):
    cache = fitted.prefill(ids).cache
    plain = RecordingCache()
    with torch.inference_mode():
        fitted.base(ids, cache=plain, use_cache=True)
    for ours, theirs in zip(cache.layers, plain.layers, strict=True):
        assert ours.keys.shape == theirs.keys.shape
        assert ours.keys.dtype == theirs.keys.dtype
