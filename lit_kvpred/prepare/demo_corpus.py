"""The text of the demo base: the standard library's sources, as one row of tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from lit_kvpred.data_splits import (
    TEST_SHARE,
    VALIDATION_SHARE,
    Split,
    split_of,
    standard_library_files,
)
from lit_kvpred.errors import DataError

END_OF_TEXT = "<|endoftext|>"


def demo_documents(split: Split) -> list[str]:
    """Reads one split of the running interpreter's standard library, ordered by name.

    Raises:
        DataError: The interpreter comes without sources.
    """
    texts = (
        path.read_text(encoding="utf-8", errors="replace")
        for name, path in standard_library_files()
        if split_of(name, VALIDATION_SHARE, TEST_SHARE) == split
    )
    documents = [text for text in texts if text.strip()]
    if not documents:
        raise DataError("this Python comes without standard-library sources; use another one")
    return documents


def train_tokenizer(documents: Sequence[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Trains a byte-level BPE tokenizer.

    Args:
        documents: Text to learn the merges from.
        vocab_size: Number of tokens, with the 256 bytes and the one special token.

    Returns:
        A tokenizer whose only special token, `<|endoftext|>` with id 0, is its start, end and
        padding token; none is added to a text.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
    )


def token_row(tokenizer: PreTrainedTokenizerFast, documents: Sequence[str]) -> Tensor:
    """Joins documents into one row of ids, each document preceded by the separator.

    Args:
        tokenizer: Its end token is the separator.
        documents: The texts.

    Returns:
        Long tensor (tokens,).
    """
    separator = torch.tensor([tokenizer.eos_token_id])
    pieces = [torch.tensor(ids) for ids in tokenizer(list(documents))["input_ids"]]
    return torch.cat([part for piece in pieces for part in (separator, piece.long())])
