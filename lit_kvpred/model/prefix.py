"""The prefix auxiliary: the base's own first layers, shared and frozen.

Rows of these layers are exact, so that only the layers above are predicted, and the hidden states
that leave the prefix are kept: the exact rows of the upper layers can be computed from them later.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from lit_kvpred.errors import ConfigurationError
from lit_kvpred.model.depth import DepthCut
from lit_kvpred.model.family import FamilyAdapter
from lit_kvpred.model.features import FeatureKind, Features, KeyValueFeatures, hidden_features
from lit_kvpred.model.reading import CacheRows, read_rows
from lit_kvpred.model.sequences import Sequences


class PrefixAuxiliary(nn.Module):
    """Reads the prompt with the first ``depth`` layers of the base; owns no parameter.

    Args:
        base: The base.
        depth: Number of shared layers, at least 1; with all of them nothing is predicted.

    Raises:
        ConfigurationError: If ``depth`` is out of range.
        UnsupportedFamilyError: If the base can't be cut in depth.
    """

    kind = "prefix"
    default_features: FeatureKind = "hidden"
    has_head = False

    def __init__(self, base: PreTrainedModel, depth: int) -> None:
        super().__init__()
        self.cut = DepthCut(FamilyAdapter(base), depth)
        self.adapter = self.cut.adapter

    @property
    def exact_layers(self) -> int:
        """Base layers whose rows this auxiliary computes exactly."""
        return self.cut.depth

    def features(
        self, kind: FeatureKind, base: FamilyAdapter, layer_map: list[int] | None
    ) -> Features:
        """What the predictor reads; ``layer_map`` covers the layers above the prefix."""
        depth = self.cut.depth
        n_predicted = base.n_layers - depth
        shapes = self.adapter.shapes[:depth]
        if kind == "kv":
            return KeyValueFeatures(shapes, layer_map or [depth - 1] * n_predicted)
        return hidden_features(self.adapter, shapes, n_predicted, layer_map)

    def read(
        self,
        input_ids: Tensor,
        sequences: Sequences,
        features: Features,
        *,
        logits_from: int | None = None,
    ) -> CacheRows:
        """Rows of the shared layers and the hidden states that leave them.

        Raises:
            ConfigurationError: If logits are asked for: a prefix has no head.
        """
        if logits_from is not None:
            raise ConfigurationError(
                "a prefix auxiliary has no logits of its own; set auxiliary_weight to 0"
            )
        return read_rows(self.adapter, input_ids, sequences, hidden_at=self.cut.depth)

    def of_base(self, base: CacheRows) -> CacheRows:
        """What `read` would return, taken from a pass of the whole base."""
        depth = self.cut.depth
        return CacheRows(
            base.raw_keys[:depth],
            base.keys[:depth],
            base.values[:depth],
            hidden=base.hidden,
            stored=base.stored[:depth],
            sequences=base.sequences,
        )

    def describe(self) -> dict[str, Any]:
        """Plain facts for artefacts and reports."""
        return {"kind": self.kind, "depth": self.cut.depth}


def prefix_depth(keep: float | int, n_layers: int) -> int:
    """Number of layers of a prefix given as a count or as a fraction of the depth.

    Raises:
        ConfigurationError: If ``keep`` is out of range.
    """
    usable = not isinstance(keep, bool) and math.isfinite(keep)
    depth = 0
    if usable:
        depth = keep if isinstance(keep, int) else round(keep * n_layers)
    if not 1 <= depth <= n_layers:
        raise ConfigurationError(
            f"keep {keep} is no prefix of {n_layers} layers; give a fraction up to 1.0 or a count "
            f"between 1 and {n_layers}"
        )
    return depth
