"""The sparse draft of one batch of prompts: neurons are counted, chosen, and then used."""

from __future__ import annotations

from transformers import PreTrainedModel

from lit_kvpred.sirius.sparsity import (
    CSparse,
    FSparse,
    NeuronStatistics,
    SparseBase,
    Sparsity,
)


class SparseDraft:
    """Writes drafts with a sparse copy of the base, which is made when first needed.

    Args:
        base: Makes the copies.
        sparsity: What is kept.

    Attributes:
        statistics: To be filled while the prompt is read exactly; None where nothing is counted.
        density: Share of the base's parameters that a sparse step uses.
    """

    def __init__(self, base: SparseBase, sparsity: Sparsity) -> None:
        self._base, self._sparsity = base, sparsity
        self._model: PreTrainedModel | None = None
        self.statistics = NeuronStatistics(base.parts) if isinstance(sparsity, CSparse) else None
        self.density = base.density(sparsity)

    @property
    def model(self) -> PreTrainedModel:
        """The sparse copy; from its first use on, statistics have no influence."""
        if self._model is None:
            if isinstance(self._sparsity, CSparse):
                assert self.statistics is not None
                self._model = self._base.by_prompt(self.statistics, self._sparsity)
            else:
                assert isinstance(self._sparsity, FSparse)
                self._model = self._base.by_token(self._sparsity)
        return self._model
