"""Efficiency of a sparse draft with periodic correction, in closed form (Sirius 2, A.2).

Costs are in parameters read per generated token, the quantity that bounds a memory-bound decode
step. Densities are relative to the dense model: 1 means that every parameter is read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def effective_density(period: int, density: float, aal: float) -> float:
    """Share of the dense model's parameters read per kept token, `((n - 1) d + 1) / AAL`.

    A period takes `n - 1` sparse steps and one dense check, and keeps `AAL` tokens on average. The
    sparse steps for the other branches of a tree are not counted, as in the paper.

    Args:
        period: Tokens from one check to the next, n.
        density: Share of the parameters that a sparse step reads, d, in (0, 1].
        aal: Average advance length: tokens gained per check, greater than 0.

    Returns:
        The effective density; above 1 the loop reads more than dense decoding.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> round(effective_density(period=16, density=0.65, aal=15.22), 3)
        0.706
    """
    _check_density(density)
    return average_parameters_used(period, parameters=1.0, sparse_parameters=density, aal=aal)


def average_parameters_used(
    period: int, parameters: float, sparse_parameters: float, aal: float
) -> float:
    """Parameters read per kept token, APU = `((n - 1) C_sparse + C_full) / AAL` (Sirius 2).

    Args:
        period: Tokens from one check to the next, n.
        parameters: Parameters that a dense step reads, C_full.
        sparse_parameters: Parameters that a sparse step reads, C_sparse, at most `parameters`.
        aal: Average advance length: tokens gained per check, greater than 0.

    Returns:
        Parameters per token, in the unit of the arguments.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> average_parameters_used(period=16, parameters=8.0, sparse_parameters=4.0, aal=17.0)
        4.0
    """
    _check_integer("period", period, least=1)
    _check_positive("parameters", parameters)
    _check_positive("sparse_parameters", sparse_parameters)
    if sparse_parameters > parameters:
        raise ValueError(
            "Expected a sparse step to read at most what a dense one reads,"
            f" {parameters}, but got {sparse_parameters}"
        )
    _check_positive("aal", aal)
    return ((period - 1) * sparse_parameters + parameters) / aal


def average_advance_length(advances: Sequence[int]) -> float:
    """Tokens gained per check, AAL (Sirius 2).

    Args:
        advances: For each check, the accepted tokens plus the dense model's own one; at least 1.

    Returns:
        The mean advance in tokens.

    Raises:
        ValueError: If there is no check, or an advance is not an integer of at least 1.

    Example:
        >>> average_advance_length([16, 16, 4])
        12.0
    """
    if not advances:
        raise ValueError("Expected argument `advances` to hold at least one check, but got none")
    for advance in advances:
        _check_integer("advances", advance, least=1)
    return sum(advances) / len(advances)


def speculative_expected_tokens(alpha: float, gamma: int) -> float:
    """Tokens gained per verification in speculative decoding (Sirius A.2).

    `(1 - alpha^(gamma + 1)) / (1 - alpha)`, the sum of the chances that the first i drafted tokens
    are all accepted, for i from 0 to gamma.

    Args:
        alpha: Chance that one drafted token is accepted, in [0, 1].
        gamma: Tokens drafted before each verification; a period of `gamma + 1`.

    Returns:
        The expected tokens per verification, the verifier's own token included.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> round(speculative_expected_tokens(alpha=0.89, gamma=16), 2)
        7.84
    """
    _check_unit("alpha", alpha)
    _check_integer("gamma", gamma, least=0)
    return sum(alpha**accepted for accepted in range(gamma + 1))


def speculative_relative_cost(alpha: float, gamma: int, density: float) -> float:
    """Effective density of speculative decoding with a sparse draft, `(gamma d + 1) / E`.

    The counterpart of `effective_density` for lossless acceptance (Sirius A.2), E being
    `speculative_expected_tokens`.

    Args:
        alpha: Chance that one drafted token is accepted, in [0, 1].
        gamma: Tokens drafted before each verification.
        density: Share of the parameters that a draft step reads, in (0, 1].

    Returns:
        Cost per token relative to dense decoding; above 1 it is slower.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> round(speculative_relative_cost(alpha=0.89, gamma=2, density=0.65), 3)
        0.858
    """
    _check_density(density)
    return (gamma * density + 1) / speculative_expected_tokens(alpha, gamma)


def csparse_density(keep: float, mlp_share: float) -> float:
    """Density of CSparse: all three maps of a gated MLP keep the same neurons (Sirius 2).

    Args:
        keep: Share of the MLP neurons kept, in [0, 1].
        mlp_share: Share of the model's parameters that its MLPs hold, in [0, 1].

    Returns:
        `1 - (1 - keep) mlp_share`.

    Raises:
        ValueError: If an argument is outside [0, 1].

    Example:
        >>> round(csparse_density(keep=0.5, mlp_share=0.702), 3)
        0.649
    """
    _check_unit("keep", keep)
    _check_unit("mlp_share", mlp_share)
    return 1 - (1 - keep) * mlp_share


def fsparse_density(keep: float, mlp_share: float) -> float:
    """Density of FSparse: the gate, a third of a gated MLP, stays dense (Sirius 2).

    Args:
        keep: Share of the MLP neurons kept, in [0, 1].
        mlp_share: Share of the model's parameters that its MLPs hold, in [0, 1].

    Returns:
        `1 - 2/3 (1 - keep) mlp_share`.

    Raises:
        ValueError: If an argument is outside [0, 1].

    Example:
        >>> round(fsparse_density(keep=0.5, mlp_share=0.702), 3)
        0.766
    """
    _check_unit("keep", keep)
    _check_unit("mlp_share", mlp_share)
    return 1 - (1 - keep) * mlp_share * 2 / 3


def _check_integer(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(
            f"Expected argument `{name}` to be an integer of at least {least}, but got {value!r}"
        )


def _check_positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(
            f"Expected argument `{name}` to be a finite number greater than 0, but got {value}"
        )


def _check_density(density: float) -> None:
    if not 0 < density <= 1:
        raise ValueError(f"Expected argument `density` to be a number in (0, 1], but got {density}")


def _check_unit(name: str, value: float) -> None:
    # Written so that NaN fails too.
    if not 0 <= value <= 1:
        raise ValueError(f"Expected argument `{name}` to be a number in [0, 1], but got {value}")
