"""Configurations of models that hold only some layers of another one."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from transformers import PreTrainedConfig


def keep_layers(config: PreTrainedConfig, kept: Sequence[int]) -> PreTrainedConfig:
    """A copy of ``config`` for the layers ``kept`` of its decoder, in that order."""
    config = copy.deepcopy(config)
    text = config.get_text_config(decoder=True)
    n_layers = text.num_hidden_layers
    for name, value in list(vars(text).items()):
        # Lists with an entry a layer (attention types, NoPE flags) shrink with the stack.
        per_layer = isinstance(value, list | tuple) and len(value) == n_layers
        if per_layer and not name.endswith("token_id") and name != "architectures":
            setattr(text, name, type(value)(value[i] for i in kept))
    text.num_hidden_layers = len(kept)
    return config
