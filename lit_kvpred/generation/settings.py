"""Settings shared by every way of generating."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lit_kvpred.checks import require_flag
from lit_kvpred.errors import ConfigurationError
from lit_kvpred.generation.context import ExactContext
from lit_kvpred.generation.sampling import GREEDY, Sampling
from lit_kvpred.generation.stopping import StopRule, eos_token_ids


@dataclass(frozen=True)
class GenerationSettings:
    """How an answer is written.

    Attributes:
        max_new_tokens: Longest answer.
        sampling: How tokens are drawn; greedy by default.
        eos_ids: Token or tokens that end an answer, kept as a tuple; None means those of the
            base's generation settings.
        stop_strings: Texts that end an answer; the token that completes one is kept.
        stop_after_text: Stop strings count only after something visible was written.
        tokenizer: Needed for stop strings.
        static_cache: Decode on a static cache instead of a dynamic one.
        context: Exact rows of a text that prompts begin with; only what follows is read.
        keep_context: Return the exact rows of prompt and answer, which are completed after the last
            token where need be.
        release_auxiliary: Put the auxiliary's weights on disk after the prefill; they come back
            for the next prompt.

    Raises:
        ConfigurationError: If a setting is of another type.
    """

    max_new_tokens: int = 128
    sampling: Sampling = GREEDY
    eos_ids: Iterable[int] | int | None = None
    stop_strings: Sequence[str] = ()
    stop_after_text: bool = False
    tokenizer: PreTrainedTokenizerBase | None = None
    static_cache: bool = False
    context: ExactContext | None = None
    keep_context: bool = False
    release_auxiliary: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.sampling, Sampling):
            raise ConfigurationError(f"sampling must be a Sampling(...), got {self.sampling!r}")
        for name in ("stop_after_text", "static_cache", "keep_context", "release_auxiliary"):
            require_flag(name, getattr(self, name))
        if self.eos_ids is not None:
            object.__setattr__(self, "eos_ids", tuple(map(_token_id, _listed(self.eos_ids))))

    def stop_rule(self, base: PreTrainedModel) -> StopRule:
        """The rule that ends an answer of ``base``.

        Raises:
            ConfigurationError: If a limit is not positive or the tokenizer is missing.
        """
        return StopRule(
            eos_token_ids(base) if self.eos_ids is None else _listed(self.eos_ids),
            self.max_new_tokens,
            self.stop_strings,
            self.tokenizer,
            stop_after_text=self.stop_after_text,
        )


def _listed(ids: Iterable[int] | int) -> list[int]:
    return list(ids) if isinstance(ids, Iterable) and not isinstance(ids, str) else [ids]


def _token_id(value: int) -> int:
    """The id as Python's own number; one that no token has ends no answer."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise ConfigurationError(f"eos_ids must be whole numbers, got {value!r}")
    return int(value)
