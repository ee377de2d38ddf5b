"""Closed-form initialisation of the predictor: ridge regression from streamed normal equations.

For each feature matrix X (with a column of ones) and target Y the minimiser of
``|XW - Y|^2 + ridge * mean(diag(X'X)) * |W without bias|^2`` needs only ``X'X``, shared by all base
layers that read the same auxiliary layer, and ``X'Y``. Both are accumulated in float64, so that
memory does not grow with the number of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_kvpred.model.predictor import KVPredictor
from lit_kvpred.model.reading import CacheRows


@dataclass(frozen=True)
class LeastSquaresFit:
    """What a fit saw and reached.

    Attributes:
        tokens: Number of rows used.
        key_error: Per predicted layer, residual variance of keys over their variance (1 - R^2).
        value_error: The same for values.
    """

    tokens: int
    key_error: list[float]
    value_error: list[float]


class _Moments:
    """Sums of one target: ``X'Y``, ``sum Y`` and ``sum Y^2``."""

    def __init__(self, features: int, targets: int) -> None:
        self.cross = torch.zeros(features + 1, targets, dtype=torch.float64)
        self.square = torch.zeros(targets, dtype=torch.float64)

    def add(self, x: Tensor, y: Tensor) -> None:
        self.cross += (x.T @ y).double().cpu()
        self.square += y.double().square().sum(0).cpu()

    def spread(self, tokens: int) -> float:
        """Root mean variance of the target's components, at least a tiny number."""
        variance = self.square / tokens - (self.cross[-1] / tokens).square()
        return float(variance.mean().clamp(min=1e-12).sqrt())


class NormalEquations:
    """Accumulates the normal equations of a predictor over a calibration pass."""

    def __init__(self, predictor: KVPredictor) -> None:
        self.predictor = predictor
        self.tokens = 0
        self._grams = {
            name: torch.zeros(width + 1, width + 1, dtype=torch.float64)
            for name, width in predictor.features.widths.items()
        }
        self._moments = {
            part: [
                _Moments(predictor.features.widths[name], linear.out_features)
                for name, linear in maps
            ]
            for part, maps in predictor.maps.items()
        }

    @torch.no_grad()
    def add(self, auxiliary: CacheRows, base: CacheRows, real: Tensor) -> None:
        """Add a batch.

        Args:
            auxiliary: Rows that the features are read from.
            base: The base's exact rows of the predicted layers.
            real: ``(B, T)`` bool, the rows to use.
        """
        self.tokens += int(real.sum())
        features = {
            name: _with_ones(x[real]) for name, x in self.predictor.features.read(auxiliary).items()
        }
        for name, x in features.items():
            self._grams[name] += (x.T @ x).double().cpu()
        targets = {"keys": base.raw_keys, "values": base.values}
        for part, maps in self.predictor.maps.items():
            first = len(targets[part]) - len(maps)
            for i, (name, _) in enumerate(maps):
                self._moments[part][i].add(features[name], targets[part][first + i][real].float())

    @torch.no_grad()
    def solve_(self, ridge: float) -> LeastSquaresFit:
        """Write the solution into the predictor.

        Args:
            ridge: Penalty on the weights (not the bias), relative to the mean squared feature.

        Raises:
            ValueError: If no row was added.
        """
        if self.tokens == 0:
            raise ValueError("no calibration row was added")
        maps = self.predictor.maps
        parts = [(part, name, linear) for part in maps for name, linear in maps[part]]
        moments = [m for part in maps for m in self._moments[part]]
        solutions = [
            _ridge_solution(self._grams[name], m.cross, ridge)
            for (_, name, _), m in zip(parts, moments, strict=True)
        ]
        errors: dict[str, list[float]] = {"keys": [], "values": []}
        bottleneck = self.predictor.bottleneck
        weights = [solution[:-1] for solution in solutions]
        if bottleneck is not None and parts:
            gram = self._grams[parts[0][1]]
            scales = [1 / m.spread(self.tokens) for m in moments]
            shared, weights = _reduced_rank(gram, weights, scales, bottleneck.out_features)
            bottleneck.weight.copy_(shared.T)
            mean = gram[-1, :-1] / gram[-1, -1]
            # The bias keeps the mean of each target in its place.
            solutions = [
                torch.cat([shared @ w, (s[-1] + mean @ (s[:-1] - shared @ w))[None]])
                for s, w in zip(solutions, weights, strict=True)
            ]
        for (part, name, linear), m, solution, weight in zip(
            parts, moments, solutions, weights, strict=True
        ):
            linear.weight.copy_(weight.T)
            linear.bias.copy_(solution[-1])
            errors[part].append(self._relative_error(self._grams[name], m, solution))
        return LeastSquaresFit(self.tokens, errors["keys"], errors["values"])

    def _relative_error(self, gram: Tensor, moments: _Moments, solution: Tensor) -> float:
        explained = 2 * (solution * moments.cross).sum(0) - (solution * (gram @ solution)).sum(0)
        residual = (moments.square - explained).clamp(min=0).sum()
        mean = moments.cross[-1] / self.tokens
        variance = (moments.square - self.tokens * mean.square()).sum()
        return float(residual / variance.clamp(min=torch.finfo(torch.float64).tiny))


def _reduced_rank(
    gram: Tensor, weights: list[Tensor], scales: list[float], rank: int
) -> tuple[Tensor, list[Tensor]]:
    """Factor several maps of the same features through one bottleneck.

    Of all maps of that rank it keeps most of what the given ones explain, each target counted by
    its own scale: the leading left singular vectors of ``G^(1/2) [W_1 s_1, W_2 s_2, ...]``, where G
    is the features' covariance.

    Args:
        gram: ``(F + 1, F + 1)`` of the features with a column of ones.
        weights: ``(F, targets)`` each.
        scales: Weight of each target.
        rank: Width of the bottleneck.

    Returns:
        ``(F, rank)`` and for each target ``(rank, targets)``.
    """
    covariance = gram[:-1, :-1] - torch.outer(gram[-1, :-1], gram[-1, :-1]) / gram[-1, -1]
    values, vectors = torch.linalg.eigh(covariance)
    values = values.clamp(min=0)
    root = (vectors * values.sqrt()) @ vectors.T
    inverse = (vectors * (values + 1e-9 * values.max()).rsqrt()) @ vectors.T
    scaled = root @ torch.cat([w * s for w, s in zip(weights, scales, strict=True)], dim=1)
    leading = torch.linalg.eigh(scaled @ scaled.T).eigenvectors[:, -rank:]
    return inverse @ leading, [leading.T @ (root @ w) for w in weights]


def _with_ones(features: Tensor) -> Tensor:
    features = features.float()
    return torch.cat([features, features.new_ones(len(features), 1)], dim=1)


def _ridge_solution(gram: Tensor, cross: Tensor, ridge: float) -> Tensor:
    penalty = torch.full((len(gram),), float(ridge * gram.diagonal()[:-1].mean())).double()
    penalty[-1] = 0.0
    penalised = gram + torch.diag(penalty)
    factor, info = torch.linalg.cholesky_ex(penalised)
    if int(info) == 0:
        return torch.cholesky_solve(cross, factor)
    # Fewer rows than features and hardly any ridge: take the minimum-norm solution.
    return torch.linalg.pinv(penalised, hermitian=True) @ cross
