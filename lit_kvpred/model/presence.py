"""Weights that are not always in memory, brought there for whoever reads them outside a forward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol
from weakref import ReferenceType, WeakKeyDictionary, ref

from torch import nn


class Keeper(Protocol):
    """Knows where the weights of some modules are."""

    def present(self, module: nn.Module) -> AbstractContextManager[None]:
        """Inside, the parameters of ``module`` hold their values."""


# Weak on both sides: a keeper holds the modules that it is entrusted with.
_KEEPERS: WeakKeyDictionary[nn.Module, ReferenceType[Keeper]] = WeakKeyDictionary()


def entrust(module: nn.Module, keeper: Keeper) -> None:
    """Let ``keeper``, kept alive elsewhere, be asked for the weights of ``module``."""
    _KEEPERS[module] = ref(keeper)


def take_back(module: nn.Module) -> None:
    """The weights of ``module`` are in memory for good."""
    _KEEPERS.pop(module, None)


def keeper_of(module: nn.Module) -> Keeper | None:
    """Who keeps the weights of ``module``; None where they are in memory."""
    found = _KEEPERS.get(module)
    return None if found is None else found()


@contextmanager
def weights_present(module: nn.Module) -> Iterator[None]:
    """Inside, the parameters that ``module`` itself has hold their values."""
    keeper = keeper_of(module)
    if keeper is None:
        yield
        return
    with keeper.present(module):
        yield
