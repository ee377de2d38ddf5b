"""Choosing the next token from logits: greedy or with transformers' own warpers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from lit_kvpred.checks import require_count, require_number, require_seed


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn; the default is greedy.

    Attributes:
        temperature: 0 is greedy; otherwise divides the logits before drawing.
        top_k: Draw among the k most likely tokens only; 0 means all.
        top_p: Draw among the most likely tokens that together have this probability.
        seed: Of the drawing; None continues torch's global generator.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        require_number("sampling temperature", self.temperature, least=0)
        require_count("sampling top_k", self.top_k, least=0)
        require_number("sampling top_p", self.top_p, above=0, most=1)
        if self.seed is not None:
            require_seed("sampling seed", self.seed)


GREEDY = Sampling()


class TokenChooser:
    """Draws tokens according to a `Sampling`."""

    def __init__(self, sampling: Sampling, device: torch.device) -> None:
        self._greedy = sampling.temperature == 0
        self._warpers = LogitsProcessorList()
        self._generator: torch.Generator | None = None
        if self._greedy:
            return
        self._warpers.append(TemperatureLogitsWarper(float(sampling.temperature)))
        if sampling.top_k:
            self._warpers.append(TopKLogitsWarper(sampling.top_k))
        if sampling.top_p < 1:
            self._warpers.append(TopPLogitsWarper(sampling.top_p))
        if sampling.seed is not None:
            self._generator = torch.Generator(device).manual_seed(int(sampling.seed))

    def __call__(self, logits: Tensor) -> Tensor:
        """``(B, V)`` logits to ``(B,)`` token ids."""
        if self._greedy:
            return logits.argmax(-1)
        return self.draw(self.probabilities(logits))

    def probabilities(self, logits: Tensor) -> Tensor:
        """``(..., V)`` logits to the probabilities that tokens are drawn with; greedy: one-hot."""
        if self._greedy:
            best = logits.argmax(-1, keepdim=True)
            return torch.zeros_like(logits, dtype=torch.float32).scatter(-1, best, 1.0)
        rows = logits.float().flatten(0, -2)
        warped: Tensor = self._warpers(torch.empty(len(rows), 0, dtype=torch.long), rows)
        return warped.softmax(-1).view(logits.shape)

    def draw(self, probabilities: Tensor) -> Tensor:
        """``(B, V)`` probabilities to ``(B,)`` token ids."""
        if self._greedy:
            return probabilities.argmax(-1)
        return torch.multinomial(probabilities, 1, generator=self._generator)[:, 0]

    def chances(self, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """Uniform in [0, 1), float32, from the same generator; greedy decoding takes no chances."""
        if self._greedy:
            return torch.zeros(shape, device=device)
        return torch.rand(shape, generator=self._generator, device=device)
