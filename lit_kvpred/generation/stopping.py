"""When an answer ends: end-of-sequence ids, stop strings, length."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lit_kvpred.checks import require_count
from lit_kvpred.errors import ConfigurationError


class StopRule:
    """Decides after each token whether an answer is complete.

    Args:
        eos_token_ids: Any of these ends an answer.
        max_new_tokens: Longest answer.
        stop_strings: An answer ends once its text contains one of them.
        tokenizer: Needed for stop strings.
        stop_after_text: Stop strings count only after something visible was written.

    Raises:
        ConfigurationError: If a limit is not positive or the tokenizer is missing.
    """

    def __init__(
        self,
        eos_token_ids: Sequence[int],
        max_new_tokens: int,
        stop_strings: Sequence[str] = (),
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        stop_after_text: bool = False,
    ) -> None:
        require_count("max_new_tokens", max_new_tokens)
        if (
            isinstance(stop_strings, str)
            or not isinstance(stop_strings, Sequence)
            or not all(isinstance(stop, str) for stop in stop_strings)
        ):
            raise ConfigurationError(f"stop strings are a list of texts, got {stop_strings!r}")
        if stop_strings and tokenizer is None:
            raise ConfigurationError("stop strings need the tokenizer; pass `tokenizer`")
        if any(not stop for stop in stop_strings):
            raise ConfigurationError("a stop string is empty; remove it")
        self.eos_token_ids = frozenset(eos_token_ids)
        self.max_new_tokens = max_new_tokens
        self._stop_strings, self._tokenizer = tuple(stop_strings), tokenizer
        self._stop_after_text = stop_after_text
        # Each token carries at least one byte of text, so that a stop string which the newest
        # token completes lies within this many tokens.
        self._window = max((len(s.encode()) for s in stop_strings), default=0) + 1

    def is_complete(self, tokens: Sequence[int]) -> bool:
        """Whether the answer ``tokens`` ends with its last token."""
        if not tokens:
            return False
        if tokens[-1] in self.eos_token_ids or len(tokens) >= self.max_new_tokens:
            return True
        if not self._stop_strings:
            return False
        assert self._tokenizer is not None
        if self._stop_after_text:
            text = self._tokenizer.decode(list(tokens)).lstrip()
        else:
            text = self._tokenizer.decode(list(tokens[-self._window :]))
        return any(stop in text for stop in self._stop_strings)


def eos_token_ids(model: PreTrainedModel) -> list[int]:
    """End-of-sequence ids of a model's generation settings."""
    ids = model.generation_config.eos_token_id
    if ids is None:
        return []
    return [ids] if isinstance(ids, int) else list(ids)
