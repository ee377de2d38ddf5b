from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from lit_kvpred.errors import ConfigurationError
from lit_kvpred.model.family import LayerShape
from lit_kvpred.model.features import KeyValueFeatures
from lit_kvpred.model.least_squares import RIDGES, NormalEquations
from lit_kvpred.model.predictor import KVPredictor
from lit_kvpred.model.reading import CacheRows, mean_absolute_error
from lit_kvpred.model.sequences import describe_batch
from tests.tiny_models import identity_model, left_padded, predicting_model, random_ids, tiny_model

_AUXILIARY = [LayerShape(2, 3, 4), LayerShape(1, 5, 3)]
_BASE = [LayerShape(1, 4, 5), LayerShape(2, 2, 2), LayerShape(3, 2, 1)]
_MAP = [0, 0, 1]


def _predictor() -> KVPredictor:
    torch.manual_seed(5)
    return KVPredictor(KeyValueFeatures(_AUXILIARY, _MAP), _BASE)


def _auxiliary_rows(batch: int, length: int) -> CacheRows:
    # Far from zero mean, so that the bias matters.
    return CacheRows(
        [torch.randn(batch, length, s.key_width) + 2 for s in _AUXILIARY],
        [],
        [torch.randn(batch, length, s.value_width) - 1 for s in _AUXILIARY],
        None,
    )


def _noisy_rows(auxiliary: CacheRows, noise: float) -> CacheRows:
    """Rows of a base that are affine in the auxiliary's but for noise."""
    teacher = _predictor_of_teacher()
    with torch.no_grad():
        keys, values = teacher(auxiliary)
    return CacheRows(
        [k + noise * torch.randn_like(k) for k in keys],
        [],
        [v + noise * torch.randn_like(v) for v in values],
        None,
    )


def _predictor_of_teacher() -> KVPredictor:
    torch.manual_seed(11)
    teacher = KVPredictor(KeyValueFeatures(_AUXILIARY, _MAP), _BASE)
    for linear in [*teacher.keys, *teacher.values]:
        torch.nn.init.normal_(linear.weight)
        torch.nn.init.normal_(linear.bias, std=3.0)
    return teacher


def _all(rows: CacheRows) -> torch.Tensor:
    return torch.ones(rows.raw_keys[0].shape[:2], dtype=torch.bool)


def _row(rows: CacheRows, i: int) -> CacheRows:
    return CacheRows([k[i : i + 1] for k in rows.raw_keys], [], [v[i : i + 1] for v in rows.values])


def _solution(linear: torch.nn.Linear) -> np.ndarray:
    return torch.cat([linear.weight.T, linear.bias[None]]).detach().double().numpy()


def test_an_affine_teacher_is_recovered():
    predictor, teacher = _predictor(), _predictor_of_teacher()
    auxiliary = _auxiliary_rows(4, 50)
    base = _noisy_rows(auxiliary, 0.0)
    equations = NormalEquations(predictor)
    equations.add(auxiliary, base, _all(auxiliary))
    fit = equations.solve_(ridge=0.0)
    for got, want in zip(predictor.parameters(), teacher.parameters(), strict=True):
        torch.testing.assert_close(got, want, atol=1e-3, rtol=1e-3)
    assert fit.tokens == 200
    assert max(fit.key_error + fit.value_error) < 1e-5
    assert (len(fit.key_error), len(fit.value_error)) == (3, 3)


def test_the_fit_is_numpys_least_squares_solution():
    predictor, auxiliary = _predictor(), _auxiliary_rows(3, 40)
    base = _noisy_rows(auxiliary, 1.0)
    real = torch.rand(3, 40) < 0.7
    equations = NormalEquations(predictor)
    equations.add(auxiliary, base, real)
    fit = equations.solve_(ridge=0.0)
    parts = (
        (predictor.keys, auxiliary.raw_keys, base.raw_keys, fit.key_error),
        (predictor.values, auxiliary.values, base.values, fit.value_error),
    )
    for maps, features, targets, errors in parts:
        for layer, source in enumerate(_MAP):
            x = features[source][real].double().numpy()
            x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
            y = targets[layer][real].double().numpy()
            expected, *_ = np.linalg.lstsq(x, y, rcond=None)
            np.testing.assert_allclose(_solution(maps[layer]), expected, atol=1e-4)
            residual = ((y - x @ expected) ** 2).sum() / ((y - y.mean(0)) ** 2).sum()
            assert errors[layer] == pytest.approx(residual, rel=1e-3)
            assert 0 < errors[layer] < 1


def test_the_ridge_is_relative_to_the_features_and_spares_the_bias():
    predictor, auxiliary = _predictor(), _auxiliary_rows(3, 40)
    base = _noisy_rows(auxiliary, 1.0)
    equations = NormalEquations(predictor)
    equations.add(auxiliary, base, _all(auxiliary))
    equations.solve_(ridge=0.3)
    x = auxiliary.raw_keys[0].flatten(0, 1).double().numpy()
    x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    y = base.raw_keys[1].flatten(0, 1).double().numpy()
    penalty = 0.3 * (x[:, :-1] ** 2).sum(0).mean() * np.eye(x.shape[1])
    penalty[-1, -1] = 0
    expected = np.linalg.solve(x.T @ x + penalty, x.T @ y)
    np.testing.assert_allclose(_solution(predictor.keys[1]), expected, atol=1e-4)


def test_a_huge_ridge_leaves_the_mean():
    predictor, auxiliary = _predictor(), _auxiliary_rows(3, 40)
    base = _noisy_rows(auxiliary, 1.0)
    equations = NormalEquations(predictor)
    equations.add(auxiliary, base, _all(auxiliary))
    fit = equations.solve_(ridge=1e9)
    for linear, target in zip(predictor.keys, base.raw_keys, strict=True):
        assert float(linear.weight.detach().abs().max()) < 1e-6
        torch.testing.assert_close(linear.bias, target.mean((0, 1)), atol=1e-4, rtol=1e-4)
    assert fit.key_error == pytest.approx([1.0] * 3, abs=1e-4)


def test_a_stream_of_batches_gives_the_fit_of_one():
    auxiliary = _auxiliary_rows(6, 20)
    base = _noisy_rows(auxiliary, 1.0)
    whole, streamed = _predictor(), _predictor()
    equations = NormalEquations(whole)
    equations.add(auxiliary, base, _all(auxiliary))
    equations.solve_(ridge=1e-4)
    equations = NormalEquations(streamed)
    for part in (slice(0, 3), slice(3, 4), slice(4, 20)):
        equations.add(auxiliary[part], base[part], _all(auxiliary)[:, part])
    fit = equations.solve_(ridge=1e-4)
    assert fit.tokens == 120
    for a, b in zip(whole.parameters(), streamed.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("garbage", [1e6, float("nan")])
def test_padding_takes_no_part(garbage):
    auxiliary = _auxiliary_rows(2, 30)
    base = _noisy_rows(auxiliary, 1.0)
    real = torch.ones(2, 30, dtype=torch.bool)
    real[0, :10] = False
    clean, padded = _predictor(), _predictor()
    equations = NormalEquations(clean)
    equations.add(auxiliary, base, real)
    equations.solve_(ridge=1e-4)
    for rows in (*auxiliary.raw_keys, *auxiliary.values, *base.raw_keys, *base.values):
        rows[0, :10] = garbage
    equations = NormalEquations(padded)
    equations.add(auxiliary, base, real)
    fit = equations.solve_(ridge=1e-4)
    assert fit.tokens == 50
    for a, b in zip(clean.parameters(), padded.parameters(), strict=True):
        assert torch.equal(a, b)


def test_fewer_rows_than_features_still_fit():
    predictor, auxiliary = _predictor(), _auxiliary_rows(1, 4)
    base = _noisy_rows(auxiliary, 1.0)
    equations = NormalEquations(predictor)
    equations.add(auxiliary, base, _all(auxiliary))
    equations.solve_(ridge=1e-6)
    assert all(bool(p.isfinite().all()) for p in predictor.parameters())
    keys, _ = predictor(auxiliary)
    for predicted, target in zip(keys, base.raw_keys, strict=True):
        torch.testing.assert_close(predicted, target, atol=2e-2, rtol=2e-2)


def _equations(noise: float, batches: int, rows: int) -> NormalEquations:
    auxiliary = _auxiliary_rows(batches, rows)
    base = _noisy_rows(auxiliary, noise)
    return _added_one_by_one(NormalEquations(_predictor()), auxiliary, base)


def _added_one_by_one(equations: NormalEquations, auxiliary, base) -> NormalEquations:
    real = torch.ones(1, auxiliary.raw_keys[0].shape[1], dtype=torch.bool)
    for i in range(len(auxiliary.raw_keys[0])):
        equations.add(_row(auxiliary, i), _row(base, i), real)
    return equations


def test_the_ridge_is_chosen_by_batches_kept_apart():
    torch.manual_seed(2)
    clean = _equations(noise=0.0, batches=16, rows=30).solve_()
    assert clean.ridge == min(RIDGES)
    # Hardly more rows than features and noise far above the signal: least weights err least.
    noisy = _equations(noise=100.0, batches=16, rows=2).solve_()
    assert noisy.ridge == max(RIDGES)


def test_batches_kept_apart_are_used_in_the_end():
    auxiliary = _auxiliary_rows(16, 20)
    base = _noisy_rows(auxiliary, 1.0)
    chosen, given = _predictor(), _predictor()
    fit = _added_one_by_one(NormalEquations(chosen), auxiliary, base).solve_()
    assert fit.tokens == 320
    equations = NormalEquations(given)
    equations.add(auxiliary, base, _all(auxiliary))
    equations.solve_(fit.ridge)
    for a, b in zip(chosen.parameters(), given.parameters(), strict=True):
        # Products of float32 rows, rounded differently by batch; without the batches kept apart the
        # difference is above .01.
        torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-3)


def test_solving_again_changes_nothing():
    equations = _equations(noise=1.0, batches=9, rows=20)
    first = equations.solve_(1e-3)
    assert equations.solve_(1e-3) == first


def test_with_few_batches_the_ridge_is_the_usual_one():
    assert _equations(noise=1.0, batches=7, rows=20).solve_().ridge == 1e-4


def test_the_wall_time_is_told():
    model = predicting_model(tiny_model("llama"))
    waited = 0.2

    def batches():
        for _ in range(2):
            time.sleep(waited)
            yield random_ids(2, 16)
        time.sleep(waited)

    start = time.perf_counter()
    fit = model.fit_least_squares(batches())
    whole = time.perf_counter() - start
    assert 0 < fit.forward_seconds < fit.seconds
    # Waiting for batches is not the fit's.
    assert fit.seconds <= whole - 3 * waited


def test_no_row_is_an_error():
    with pytest.raises(ValueError, match="no calibration row"):
        NormalEquations(_predictor()).solve_(ridge=1e-4)


def test_an_empty_calibration_is_an_error_and_changes_nothing():
    model = predicting_model(tiny_model("llama"))
    before = [p.clone() for p in model.predictor.parameters()]
    with pytest.raises(ValueError, match="no calibration row"):
        model.fit_least_squares([])
    assert all(torch.equal(a, b) for a, b in zip(before, model.predictor.parameters(), strict=True))


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
def test_a_copy_of_the_base_is_fitted_with_the_identity(family):
    # Larger weights: rows of every layer then span the whole space.
    model = identity_model(tiny_model(family, weight_scale=8.0))
    maps = [*model.predictor.keys, *model.predictor.values]
    torch.manual_seed(1)
    for linear in maps:
        linear.reset_parameters()
    fit = model.fit_least_squares([random_ids(16, 64, seed=s) for s in range(4)], ridge=1e-7)
    assert fit.tokens == 4096
    if family != "gpt2":  # a layer norm leaves one direction empty, where any weight will do
        for linear in maps:
            eye = torch.eye(linear.in_features)
            torch.testing.assert_close(linear.weight, eye, atol=1e-3, rtol=0)
    ids = random_ids(2, 20, seed=9)
    with torch.no_grad():
        output = model(ids)
        exact = model.read_base(ids, describe_batch(ids, None), logits_from=0)
    for (keys, _), target in zip(output.predicted, exact.keys, strict=True):
        assert float((keys - target).abs().mean()) < 1e-3 * float(target.abs().mean())
    torch.testing.assert_close(output.logits, exact.logits, atol=5e-3, rtol=5e-3)


def _consistency(model, ids) -> float:
    sequences = describe_batch(ids, None)
    with torch.no_grad():
        predicted = model.predict(model.read_auxiliary(ids, sequences))
        exact = model.read_base(ids, sequences)
    return sum(
        float(mean_absolute_error(k, t, sequences.real))
        for k, t in zip(predicted.keys, exact.keys, strict=True)
    )


def test_the_fit_beats_random_maps_on_unseen_text():
    model = predicting_model(tiny_model("llama"))
    unseen = random_ids(4, 32, seed=99)
    before = _consistency(model, unseen)
    fit = model.fit_least_squares([random_ids(8, 32, seed=s) for s in range(6)])
    assert _consistency(model, unseen) < 0.6 * before
    # The kept first layer is the base's own: its rows are predicted without error.
    assert fit.key_error[0] < 1e-4
    assert fit.value_error[0] < 1e-4
    assert fit.key_error[1] > 1e-2


def test_calibration_batches_may_be_padded_or_packed():
    base = tiny_model("llama")
    prompts = [random_ids(n, seed=n) for n in (20, 33, 40, 27)]
    plain = predicting_model(base)
    plain.fit_least_squares([p[None] for p in prompts])
    ids, mask = left_padded(prompts)
    padded = predicting_model(base)
    fit = padded.fit_least_squares([{"input_ids": ids, "attention_mask": mask}])
    assert fit.tokens == 120
    documents = torch.cat([torch.full((len(p),), i) for i, p in enumerate(prompts)])
    packed = predicting_model(base)
    row = {"input_ids": torch.cat(prompts)[None], "document_ids": documents[None]}
    assert packed.fit_least_squares([row]).tokens == 120
    for a, b, c in zip(
        plain.predictor.parameters(),
        padded.predictor.parameters(),
        packed.predictor.parameters(),
        strict=True,
    ):
        torch.testing.assert_close(a, b, atol=2e-3, rtol=2e-3)
        torch.testing.assert_close(a, c, atol=2e-3, rtol=2e-3)


def test_sequences_beyond_the_positions_are_refused():
    model = predicting_model(tiny_model("llama", max_position_embeddings=32))
    with pytest.raises(ConfigurationError, match="33 tokens but the base has 32 positions"):
        model.fit_least_squares([random_ids(1, 33)])
    # Packed documents count by themselves.
    documents = torch.tensor([[0] * 20 + [1] * 20])
    assert model.fit_least_squares([{"input_ids": random_ids(1, 40), "document_ids": documents}])


def test_fitting_asks_no_gradient():
    model = predicting_model(tiny_model("llama"))
    model.fit_least_squares([random_ids(2, 16)])
    assert all(p.grad is None for p in model.parameters())
    assert all(p.requires_grad for p in model.predictor.parameters())


def test_a_row_of_weight_two_is_two_rows():
    auxiliary = _auxiliary_rows(3, 40)
    base, real = _noisy_rows(auxiliary, 1.0), _all(auxiliary)
    weighted, doubled = _predictor(), _predictor()
    equations = NormalEquations(weighted)
    equations.add(auxiliary, base, real, weights=torch.full(real.shape, 2.0))
    equations.solve_(ridge=1e-4)
    equations = NormalEquations(doubled)
    for _ in range(2):
        equations.add(auxiliary, base, real)
    equations.solve_(ridge=1e-4)
    for one, other in zip(weighted.parameters(), doubled.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)
    # A row that counts nothing might as well not be there.
    some = real.clone()
    some[:, 20:] = False
    for predictor, used, weights in ((weighted, real, some.float()), (doubled, some, None)):
        equations = NormalEquations(predictor)
        equations.add(auxiliary, base, used, weights)
        equations.solve_(ridge=1e-4)
    for one, other in zip(weighted.parameters(), doubled.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)


def test_attention_changes_what_is_fitted_best():
    base = tiny_model("llama", weight_scale=8.0)
    batches = [random_ids(8, 24, seed=s) for s in range(4)]
    fits = {}
    for weighting in ("attention", "uniform"):
        model = predicting_model(base)
        model.fit_least_squares(batches, ridge=1e-2, weighting=weighting)
        fits[weighting] = [p.clone() for p in model.predictor.parameters()]
    assert not torch.equal(fits["attention"][0], fits["uniform"][0])
    with pytest.raises(ConfigurationError, match="weighting 'mass' is unknown"):
        predicting_model(base).fit_least_squares(batches, weighting="mass")
