"""Closed-form initialisation of the predictor: ridge regression from streamed normal equations.

For each feature matrix X (with a column of ones) and target Y the minimiser of
``|XW - Y|^2 + ridge * mean(diag(X'X)) * |W without bias|^2`` needs only ``X'X``, shared by all base
layers that read the same auxiliary layer, and ``X'Y``. Both are accumulated in float64, so that
memory does not grow with the number of tokens. Rows may have weights: those that later tokens look
at most should be predicted best.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lit_kvpred.model.predictor import KVPredictor
from lit_kvpred.model.reading import CacheRows

Weighting = Literal["attention", "uniform"]
"""What a row counts: by the attention that it receives, or as much as any other."""

RIDGES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
"""Penalties that are tried where none is given."""
_FEW_BATCHES_RIDGE = 1e-4
_HOLD_OUT_EVERY = 8
_MOST_ATTENTION = 20.0


@dataclass(frozen=True)
class LeastSquaresFit:
    """What a fit saw and reached.

    Attributes:
        tokens: Number of rows used.
        ridge: Penalty on the weights, relative to the mean squared feature.
        key_error: Per predicted layer, residual variance of keys over their variance (1 - R^2).
        value_error: The same for values.
        seconds: Wall time of the fit, without what it takes to get the batches.
        forward_seconds: Of it, the time in which the models read the text.
    """

    tokens: int
    ridge: float
    key_error: list[float]
    value_error: list[float]
    seconds: float = 0.0
    forward_seconds: float = 0.0


class _Sums:
    """Sums over rows: ``X'X`` by feature, and ``X'Y`` and ``sum Y^2`` of every target.

    Targets of one feature stand side by side, in the order of the predictor's maps.
    """

    def __init__(self, predictor: KVPredictor) -> None:
        self.columns: dict[str, list[slice]] = {name: [] for name in predictor.features.widths}
        ends = dict.fromkeys(self.columns, 0)
        for maps in predictor.maps.values():
            for name, linear in maps:
                stop = ends[name] + linear.out_features
                self.columns[name].append(slice(ends[name], stop))
                ends[name] = stop
        self.grams: dict[str, Tensor] = {}
        self.crosses: dict[str, Tensor] = {}
        self.squares: dict[str, Tensor] = {}
        for name, width in predictor.features.widths.items():
            self.grams[name] = torch.zeros(width + 1, width + 1, dtype=torch.float64)
            self.crosses[name] = torch.zeros(width + 1, ends[name], dtype=torch.float64)
            self.squares[name] = torch.zeros(ends[name], dtype=torch.float64)

    def add(self, name: str, x: Tensor, y: Tensor) -> None:
        """Add rows of a feature (with its column of ones) and of all its targets."""
        self.grams[name] += (x.T @ x).double().cpu()
        self.crosses[name] += (x.T @ y).double().cpu()
        self.squares[name] += y.double().square().sum(0).cpu()

    def with_(self, other: _Sums) -> _Sums:
        """Add the rows of ``other``."""
        for mine, theirs in zip(self._all(), other._all(), strict=True):
            for name, tensor in theirs.items():
                mine[name] += tensor
        return self

    def solve(self, name: str, ridge: float) -> Tensor:
        """Weights and, in the last row, biases of all targets of a feature."""
        return _ridge_solution(self.grams[name], self.crosses[name], ridge)

    def spread(self, name: str, columns: slice) -> float:
        """Root mean variance of a target's components, at least a tiny number."""
        rows = self.grams[name][-1, -1]
        mean = self.crosses[name][-1, columns] / rows
        variance = self.squares[name][columns] / rows - mean.square()
        return float(variance.mean().clamp(min=1e-12).sqrt())

    def error(self, name: str, columns: slice, solution: Tensor) -> float:
        """Residual variance of a target over its variance."""
        gram, cross = self.grams[name], self.crosses[name][:, columns]
        square = self.squares[name][columns].sum()
        residual = square - 2 * (solution * cross).sum() + (solution * (gram @ solution)).sum()
        total = square - cross[-1].square().sum() / gram[-1, -1]
        return float(residual.clamp(min=0) / total.clamp(min=1e-12))

    def mean_error(self, name: str, solution: Tensor) -> float:
        """`error`, mean over the targets of a feature."""
        errors = [self.error(name, c, solution[:, c]) for c in self.columns[name]]
        return sum(errors) / len(errors)

    def _all(self) -> tuple[dict[str, Tensor], ...]:
        return self.grams, self.crosses, self.squares


class NormalEquations:
    """Accumulates the normal equations of a predictor over a calibration pass.

    Every eighth batch is kept apart until the ridge is chosen.
    """

    def __init__(self, predictor: KVPredictor) -> None:
        self.predictor = predictor
        self.tokens = 0
        self._batches = 0
        self._fitted, self._held_out = _Sums(predictor), _Sums(predictor)

    @torch.no_grad()
    def add(
        self, auxiliary: CacheRows, base: CacheRows, real: Tensor, weights: Tensor | None = None
    ) -> None:
        """Add a batch.

        Args:
            auxiliary: Rows that the features are read from.
            base: The base's exact rows of the predicted layers.
            real: ``(B, T)`` bool, the rows to use.
            weights: ``(B, T)`` float32, what the squared error of each row counts; 1 by default.
        """
        self.tokens += int(real.sum())
        self._batches += 1
        sums = self._fitted if self._batches % _HOLD_OUT_EVERY else self._held_out
        targets: dict[str, list[Tensor]] = {name: [] for name in sums.columns}
        for part, rows in (("keys", base.raw_keys), ("values", base.values)):
            maps = self.predictor.maps[part]
            for (name, _), layer in zip(maps, range(len(rows) - len(maps), len(rows)), strict=True):
                targets[name].append(rows[layer][real].float())
        for name, x in self.predictor.features.read(auxiliary).items():
            if targets[name]:
                inputs, wanted = _with_ones(x[real]), torch.cat(targets[name], dim=1)
                if weights is not None:
                    root = weights[real].sqrt()[:, None]
                    inputs, wanted = inputs * root, wanted * root
                sums.add(name, inputs, wanted)

    @torch.no_grad()
    def solve_(self, ridge: float | None = None) -> LeastSquaresFit:
        """Write the solution into the predictor.

        Args:
            ridge: Penalty on the weights (not the bias), relative to the mean squared feature. None
                takes the one of `RIDGES` that fits best the batches kept apart; they are used as
                well afterwards.

        Raises:
            ValueError: If no row was added.
        """
        if self.tokens == 0:
            raise ValueError("no calibration row was added")
        if ridge is None:
            ridge = self._best_ridge()
        sums = self._fitted.with_(self._held_out)
        self._held_out = _Sums(self.predictor)
        solutions = {name: sums.solve(name, ridge) for name in sums.columns}
        weights = {name: solution[:-1] for name, solution in solutions.items()}
        bottleneck = self.predictor.bottleneck
        if bottleneck is not None and self.predictor.maps["keys"]:
            (name,) = solutions
            widths = [c.stop - c.start for c in sums.columns[name]]
            scales = [1 / sums.spread(name, c) for c in sums.columns[name]]
            scale = torch.repeat_interleave(torch.tensor(scales).double(), torch.tensor(widths))
            gram, solution = sums.grams[name], solutions[name]
            shared, weights[name] = _reduced_rank(
                gram, solution[:-1], scale, bottleneck.out_features
            )
            bottleneck.weight.copy_(shared.T)
            mean, whole = gram[-1, :-1] / gram[-1, -1], shared @ weights[name]
            # The bias keeps the mean of each target in its place.
            bias = solution[-1] + mean @ (solution[:-1] - whole)
            solutions[name] = torch.cat([whole, bias[None]])
        errors: dict[str, list[float]] = {"keys": [], "values": []}
        columns = {name: iter(slices) for name, slices in sums.columns.items()}
        for part, maps in self.predictor.maps.items():
            for name, linear in maps:
                own = next(columns[name])
                linear.weight.copy_(weights[name][:, own].T)
                linear.bias.copy_(solutions[name][-1, own])
                errors[part].append(sums.error(name, own, solutions[name][:, own]))
        return LeastSquaresFit(self.tokens, ridge, errors["keys"], errors["values"])

    def _best_ridge(self) -> float:
        """The penalty with the least mean relative error on the batches kept apart."""
        if self._batches < _HOLD_OUT_EVERY:
            return _FEW_BATCHES_RIDGE

        def error(ridge: float) -> float:
            names = [name for name, columns in self._fitted.columns.items() if columns]
            return sum(
                self._held_out.mean_error(name, self._fitted.solve(name, ridge)) for name in names
            )

        return min(RIDGES, key=error)


def attention_weights(received: Tensor) -> Tensor:
    """What a row counts that receives a given share of attention.

    The root, because attention is shared out very unevenly: most of it goes to a document's first
    row.

    Args:
        received: Relative to the mean row.
    """
    return received.clamp(max=_MOST_ATTENTION).sqrt()


def _reduced_rank(
    gram: Tensor, weights: Tensor, scales: Tensor, rank: int
) -> tuple[Tensor, Tensor]:
    """Factor the maps of one feature through a bottleneck.

    Of all maps of that rank it keeps most of what the given ones explain, each target counted by
    its own scale: the leading left singular vectors of ``G^(1/2) W diag(scales)``, where G is the
    features' covariance.

    Args:
        gram: ``(F + 1, F + 1)`` of the features with a column of ones.
        weights: ``(F, columns)``.
        scales: Weight of each column.
        rank: Width of the bottleneck.

    Returns:
        ``(F, rank)`` and ``(rank, columns)``.
    """
    covariance = gram[:-1, :-1] - torch.outer(gram[-1, :-1], gram[-1, :-1]) / gram[-1, -1]
    values, vectors = torch.linalg.eigh(covariance)
    # Per row, so that what leaves the bottleneck has unit variance: gradient steps suit that.
    values = values.clamp(min=0) / gram[-1, -1]
    root = (vectors * values.sqrt()) @ vectors.T
    inverse = (vectors * (values + 1e-9 * values.max()).rsqrt()) @ vectors.T
    explained = root @ weights
    scaled = explained * scales
    leading = torch.linalg.eigh(scaled @ scaled.T).eigenvectors[:, -rank:]
    return inverse @ leading, leading.T @ explained


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
