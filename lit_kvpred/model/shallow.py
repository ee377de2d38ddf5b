"""Copies of a model that share every weight and differ in a few modules.

No forward is forked and the original is never touched: modules on the path to a replaced one are
copied without their contents.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import nn


def shallow_copy(module: Any, config: Any = None) -> Any:
    """A copy with its own table of submodules, which are shared; ``config`` replaces its config."""
    copied = copy.copy(module)
    copied._modules = dict(module._modules)
    if config is not None and hasattr(copied, "config"):
        copied.config = config
    return copied


def replace_module(
    copied: Any, original: nn.Module, module: nn.Module, replacement: nn.Module, config: Any = None
) -> Any:
    """Put ``replacement`` in the place of ``module`` in a shallow copy.

    Args:
        copied: Shallow copy of ``original``.
        original: Contains ``module``.
        module: What is replaced, found by identity.
        replacement: What takes its place.
        config: Given to the modules on the way that have one.

    Returns:
        The copied module around the replacement.
    """
    path = next(name for name, m in original.named_modules() if m is module)
    *parents, last = path.split(".")
    for name in parents:
        child = shallow_copy(copied._modules[name], config)
        copied._modules[name] = child
        copied = child
    copied._modules[last] = replacement
    return copied
