"""Which auxiliary layer feeds which base layer (KVP 2.2), and which layers pruning keeps (2.5)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from lit_kvpred.errors import ConfigurationError

_PRUNING_RULES = {0.25: {0}, 0.5: {0, 2}, 0.75: {0, 1, 2}}


def layer_map(n_base: int, n_aux: int) -> list[int]:
    """KVP-C rule: consecutive base layers share an auxiliary layer, surplus goes to early ones.

    Args:
        n_base: Number of base layers.
        n_aux: Number of auxiliary layers, at most ``n_base``.

    Returns:
        For each base layer the index of the auxiliary layer that feeds it.

    Raises:
        ConfigurationError: If the auxiliary is deeper than the base or has no layer.
    """
    if not 1 <= n_aux <= n_base:
        raise ConfigurationError(
            f"an auxiliary of {n_aux} layers can't feed a base of {n_base}; "
            "the auxiliary must have between 1 and as many layers as the base"
        )
    share, surplus = divmod(n_base, n_aux)
    return [j for j in range(n_aux) for _ in range(share + (j < surplus))]


def pruned_layers(n_base: int, fraction: float) -> list[int]:
    """Layers that KVP-LP keeps: of every four the first three, first and third, or first.

    Args:
        n_base: Number of base layers.
        fraction: .75, .5 or .25.

    Raises:
        ConfigurationError: For any other fraction; list the kept layers instead.
    """
    if fraction not in _PRUNING_RULES:
        raise ConfigurationError(
            f"no published pruning rule for fraction {fraction}; use .25, .5 or .75, "
            "or list the kept layers"
        )
    return [i for i in range(n_base) if i % 4 in _PRUNING_RULES[fraction]]


def pruned_layer_map(kept: Sequence[int], n_base: int) -> list[int]:
    """KVP-LP rule: a base layer is fed by the last kept layer at or below it.

    Args:
        kept: Original indices of the kept layers, strictly increasing, starting with 0.
        n_base: Number of base layers.

    Raises:
        ConfigurationError: If ``kept`` is not such a list.
    """
    check_kept_layers(kept, n_base)
    return [sum(k <= i for k in kept) - 1 for i in range(n_base)]


def check_kept_layers(kept: Sequence[int], n_base: int) -> None:
    """Raise `ConfigurationError` unless ``kept`` is 0 < ... < n_base, strictly increasing."""
    if not all(isinstance(k, int) and not isinstance(k, bool) for k in kept):
        raise ConfigurationError(f"kept layers must be whole numbers, got {list(kept)}")
    increasing = all(a < b for a, b in itertools.pairwise(kept))
    if not kept or kept[0] != 0 or not increasing or kept[-1] >= n_base:
        raise ConfigurationError(
            f"kept layers {list(kept)} must increase strictly, start with 0 (nothing feeds base "
            f"layer 0 otherwise) and stay below {n_base}"
        )
