"""Prompts of a given length, cut from the beginnings of real documents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lit_kvpred.errors import ConfigurationError

if TYPE_CHECKING:
    from torch import Tensor


def document_prompts(source: str, tokenizer: Any, length: int, number: int) -> Iterator[Tensor]:
    """The first ``length`` tokens of documents that are long enough, held-out ones first.

    Args:
        source: A file, folder, glob, hub data set, or stdlib.
        tokenizer: Of the base.
        length: Tokens of each prompt.
        number: Prompts that are wanted.

    Yields:
        ``(1, length)`` long.

    Raises:
        ConfigurationError: If there are fewer such documents.
    """
    from lit_kvpred.data_splits import TEST_SHARE, VALIDATION_SHARE, split_of
    from lit_kvpred.datamodules.sources import resolve_source

    def trained_on(document: Any) -> bool:
        return split_of(document.name, VALIDATION_SHARE, TEST_SHARE) == "train"

    found = 0
    for document in sorted(resolve_source(source).documents("text"), key=trained_on):
        ids = tokenizer(document.text, return_tensors="pt")["input_ids"][:, :length]
        if ids.shape[1] == length:
            yield ids
            found += 1
            if found == number:
                return
    raise ConfigurationError(
        f"{source} holds {found} documents of {length} tokens, {number} are needed; "
        "give more text, fewer rounds or shorter prompts"
    )
