"""Training and validation text for a causal language model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerBase

from lit_kvpred.cache_folder import cache_folder
from lit_kvpred.data_splits import TEST_SHARE, VALIDATION_SHARE, Split, split_of
from lit_kvpred.errors import ConfigurationError, DataError
from lit_kvpred.model.loading import load_tokenizer

from .corpus import Corpus, TokenisedCorpus
from .resume import OpenEpoch, Position, ResumableLoader, check_settings, lightning_counts
from .rows import Batch, PackedRows, PaddedRows, collate
from .shares import EvaluationShare, Process
from .sources import concatenated_stream, resolve_source
from .streaming import StreamedCorpus, StreamedRows, in_step, packed_rows, padded_rows
from .token_cache import (
    DocumentTokens,
    load_document_tokens,
    separator_id,
    tokenizer_fingerprint,
)


class TextDataModule(LightningDataModule):
    """Documents, split by the hash of their names, cut into sequences of tokens.

    Batches are dicts of long tensors (B, T): `input_ids`; `attention_mask` (1 real, 0 right
    padding); `document_ids` (0, 1, .. for the documents of a row, -1 at padding).

    Training can be resumed at any batch: the order of batches is a pure function of seed and epoch,
    and a checkpoint holds the place in it together with the settings it depends on. Under several
    processes each reads a disjoint share of equal length, and validation covers every sequence
    exactly once; Lightning replaces none of the loaders, so `use_distributed_sampler` may stay on.

    Args:
        tokenizer: Folder, `.gguf` file or hub id of the tokenizer.
        sources: Where the text comes from, each one of `stdlib` (the running interpreter's own
            sources, without tests and bundled packages), `package_descriptions` and
            `package_docstrings` (prose that installed packages come with), a file (`.jsonl`,
            `.json`, `.parquet`, `.txt` or any source file; with `.gz` all but Parquet), a folder, a
            glob, or `hub:NAME` or `hub:NAME:CONFIG` for the train split of a hub data set.
        text_field: The field of a record that holds its text.
        sequence_length: Tokens of a row.
        batch_size: Rows of a batch of one process.
        packing: `packed` joins documents with the tokenizer's EOS (or BOS) and cuts rows of exactly
            `sequence_length`; `padded` gives every document rows of its own.
        validation_share: Expected share of validation documents.
        test_share: Expected share of test documents.
        balance_sources: Each source contributes as many rows of a split as the smallest one; not
            for streams.
        limit_documents: Use this many documents, the first in the order of the sources.
        max_training_tokens: Train on about this many tokens, evenly spread over the training split.
        validation_sequences: Validate and test on this many sequences each, evenly spread (the
            first ones of a stream); all of them when not given.
        seed: Seed of the order of training batches.
        num_workers: Worker processes of the training loader.
        cache_dir: Folder of the token cache; `$LIT_KVPRED_CACHE` or `~/.cache/lit_kvpred` when not
            given.
        streaming: Tokenise on the fly and keep nothing. Needs `validation_sequences`. Resuming
            reads the begun epoch's beginning again, without training on it.
        shuffle_buffer: Documents among which a stream's next one is drawn.

    Raises:
        ConfigurationError: A setting is out of range or contradicts another one.
    """

    def __init__(
        self,
        tokenizer: str,
        sources: Sequence[str] = ("stdlib",),
        text_field: str = "text",
        sequence_length: int = 256,
        batch_size: int = 4,
        packing: Literal["packed", "padded"] = "packed",
        validation_share: float = VALIDATION_SHARE,
        test_share: float = TEST_SHARE,
        balance_sources: bool = False,
        limit_documents: int | None = None,
        max_training_tokens: int | None = None,
        validation_sequences: int | None = None,
        seed: int = 0,
        num_workers: int = 0,
        cache_dir: str | None = None,
        streaming: bool = False,
        shuffle_buffer: int = 1000,
    ) -> None:
        super().__init__()
        # logger=False: the model's hyper-parameters are logged, and the names may overlap.
        self.save_hyperparameters(logger=False)
        self.tokenizer_source = tokenizer
        self.sources = list(sources)
        self.text_field = text_field
        self.sequence_length = sequence_length
        self.batch_size = batch_size
        self.packing = packing
        self.validation_share = validation_share
        self.test_share = test_share
        self.balance_sources = balance_sources
        self.limit_documents = limit_documents
        self.max_training_tokens = max_training_tokens
        self.validation_sequences = validation_sequences
        self.seed = seed
        self.num_workers = num_workers
        self.cache_dir = Path(cache_dir).expanduser() if cache_dir else cache_folder()
        self.streaming = streaming
        self.shuffle_buffer = shuffle_buffer
        self._check_arguments()
        # A process may get no sequence of a small validation split.
        self.allow_zero_length_dataloader_with_multiple_devices = True
        self._tokenizer: PreTrainedTokenizerBase | None = None
        self._corpus: Corpus | None = None
        self._restored: Mapping[str, Any] | None = None

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer, loaded on first use."""
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self.tokenizer_source)
        return self._tokenizer

    def prepare_data(self) -> None:
        """Fills the token cache; Lightning calls this on one process."""
        if not self.streaming:
            self._tokens()

    def setup(self, stage: str | None = None) -> None:
        """Opens the data, once; a second stage uses the same.

        Args:
            stage: `fit`, `validate`, `test`, `predict`, or None.

        Raises:
            DataError: A source is missing or malformed, or holds no text.
        """
        if stage == "fit":
            self._restored = None
        if self._corpus is None:
            self._corpus = self._open_stream() if self.streaming else self._open_tokens()

    def train_dataloader(self) -> ResumableLoader:
        """Returns the endless, resumable training loader of this process.

        Raises:
            CheckpointError: The run resumes from a checkpoint with other data settings.
            DataError: The training split is too small.
        """
        corpus, process, trainer = self._opened(), self._process(), self.trainer
        training = trainer is not None and trainer.training
        open_epoch: OpenEpoch = partial(corpus.epoch, process=process)
        length = corpus.length(process)
        if training and trainer.overfit_batches > 0:
            open_epoch = _same_epoch(open_epoch)
        if training and length is None:
            open_epoch = _together(open_epoch, trainer.strategy.reduce_boolean_decision)
        return ResumableLoader(
            open_epoch,
            start=self._start(),
            length=length,
            counts=partial(lightning_counts, trainer) if training else None,
        )

    def val_dataloader(self) -> DataLoader[Batch] | list[DataLoader[Batch]]:
        """Returns this process's share of the validation sequences; nothing if the share is 0."""
        return self._evaluation_loader("validation", self.validation_share)

    def test_dataloader(self) -> DataLoader[Batch] | list[DataLoader[Batch]]:
        """Returns this process's share of the test sequences; nothing if the share is 0."""
        return self._evaluation_loader("test", self.test_share)

    def calibration_dataloader(self, n_batches: int) -> Iterable[Batch]:
        """Returns training batches in a fixed order, the same for every process.

        Reading them changes neither the training order nor the state of any generator.

        Args:
            n_batches: Batches wanted; fewer come when the training split is smaller.

        Returns:
            The first batches of epoch 0 as a run of one process sees them.
        """
        return self._opened().calibration(n_batches)

    def describe(self) -> dict[str, Any]:
        """Returns settings and, once set up, sizes, as plain values for a report."""
        settings = {
            "sources": self.sources,
            "tokenizer": self.tokenizer_source,
            "packing": self.packing,
            "balance_sources": self.balance_sources,
            "sequence_length": self.sequence_length,
            "batch_size": self.batch_size,
            "streaming": self.streaming,
            "seed": self.seed,
        }
        return settings | (self._corpus.describe() if self._corpus else {})

    def state_dict(self) -> dict[str, Any]:
        """Returns the settings that the order of batches depends on, and the next whole epoch."""
        loader = self._running_loader()
        if loader is None:
            return {}
        return {"settings": self._settings(), "epoch": loader.position.next_epoch().epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keeps the state of a checkpoint until training asks for its loader."""
        self._restored = state_dict

    def _start(self) -> Position:
        """Where the training loader starts; Lightning moves it to a saved place within an epoch."""
        running = self._running_loader()
        if running is not None:
            return running.position.next_epoch()
        if self._restored is not None:
            check_settings(self._restored["settings"], self._settings())
            return Position(self._restored["epoch"])
        training = self.trainer is not None and self.trainer.training
        return Position(self.trainer.current_epoch if training else 0)

    def _running_loader(self) -> ResumableLoader | None:
        loader = self.trainer.train_dataloader if self.trainer is not None else None
        return loader if isinstance(loader, ResumableLoader) else None

    def _settings(self) -> dict[str, Any]:
        return {
            "sequence_length": self.sequence_length,
            "batch_size": self.batch_size,
            "packing": self.packing,
            "seed": self.seed,
            "world_size": self._process().world_size,
            "streaming": self.streaming,
            "validation_share": self.validation_share,
            "test_share": self.test_share,
            "balance_sources": self.balance_sources,
            "limit_documents": self.limit_documents,
            "max_training_tokens": self.max_training_tokens,
            "tokenizer": tokenizer_fingerprint(self.tokenizer),
            **self._opened().order_settings(),
        }

    def _process(self) -> Process:
        if self.trainer is None:
            return Process()
        return Process(self.trainer.global_rank, self.trainer.world_size)

    def _opened(self) -> Corpus:
        if self._corpus is None:
            self.setup()
        assert self._corpus is not None
        return self._corpus

    def _evaluation_loader(
        self, split: Split, share: float
    ) -> DataLoader[Batch] | list[DataLoader[Batch]]:
        if share == 0:
            return []
        rows = self._opened().evaluation_rows(split, self.validation_sequences)
        if len(rows) == 0:
            raise DataError(
                f"no sequence fell into the {split} split; add documents or raise {split}_share"
            )
        return DataLoader(
            rows,
            batch_size=self.batch_size,
            sampler=EvaluationShare(len(rows), self._process()),
            collate_fn=partial(collate, pad_id=self._pad_id()),
            generator=torch.Generator(),  # or the loader would draw from the global one
        )

    def _tokens(self) -> DocumentTokens:
        return load_document_tokens(
            [resolve_source(source) for source in self.sources],
            self.tokenizer,
            text_field=self.text_field,
            limit_documents=self.limit_documents,
            cache_dir=self.cache_dir,
        )

    def _open_tokens(self) -> TokenisedCorpus:
        return TokenisedCorpus(
            self._tokens(),
            row_type=PackedRows if self.packing == "packed" else PaddedRows,
            split_of=self._split_of,
            sequence_length=self.sequence_length,
            batch_size=self.batch_size,
            pad_id=self._pad_id(),
            seed=self.seed,
            num_workers=self.num_workers,
            balance_sources=self.balance_sources,
            max_training_tokens=self.max_training_tokens,
        )

    def _open_stream(self) -> StreamedCorpus:
        documents = concatenated_stream([resolve_source(s) for s in self.sources], self.text_field)
        if self.limit_documents is not None:
            documents = documents.take(self.limit_documents)
        rows = partial(
            StreamedRows,
            tokenizer=self.tokenizer,
            split_of=self._split_of,
            pack=packed_rows if self.packing == "packed" else padded_rows,
            sequence_length=self.sequence_length,
        )
        return StreamedCorpus(
            documents,
            rows,
            sources=self.sources,
            batch_size=self.batch_size,
            pad_id=self._pad_id(),
            seed=self.seed,
            shuffle_buffer=self.shuffle_buffer,
            num_workers=self.num_workers,
        )

    def _split_of(self, name: str) -> Split:
        return split_of(name, self.validation_share, self.test_share)

    def _pad_id(self) -> int:
        pad = self.tokenizer.pad_token_id
        return int(pad) if pad is not None else separator_id(self.tokenizer)

    def _check_arguments(self) -> None:
        least = {
            "sequence_length": 2,
            "batch_size": 1,
            "limit_documents": 1,
            "max_training_tokens": 1,
            "validation_sequences": 1,
            "num_workers": 0,
            "shuffle_buffer": 1,
        }
        for name, minimum in least.items():
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise ConfigurationError(f"{name} must be at least {minimum}, got {value}")
        if not self.sources:
            raise ConfigurationError("sources is empty; name at least one, for example stdlib")
        if self.packing not in ("packed", "padded"):
            raise ConfigurationError(f"packing must be packed or padded, got {self.packing!r}")
        shares = (self.validation_share, self.test_share)
        if min(shares) < 0 or sum(shares) >= 1:
            raise ConfigurationError(
                f"validation_share and test_share must not be negative and leave a share to train"
                f" on, got {shares[0]} and {shares[1]}"
            )
        if self.streaming and self.validation_sequences is None:
            raise ConfigurationError("streaming has no end to count to; set validation_sequences")
        if self.streaming and self.balance_sources:
            raise ConfigurationError(
                "balance_sources has to know the sizes of all sources; leave out streaming"
            )
        if self.streaming and self.max_training_tokens is not None:
            raise ConfigurationError(
                "max_training_tokens has no meaning for a stream; limit the trainer's steps instead"
            )


def _same_epoch(open_epoch: OpenEpoch) -> OpenEpoch:
    """Returns the batches of epoch 0 every time, as overfitting on a few of them asks for."""
    return lambda _, skip: open_epoch(0, skip)


def _together(open_epoch: OpenEpoch, agree: Callable[[bool], bool]) -> OpenEpoch:
    return lambda epoch, skip: in_step(open_epoch(epoch, skip), agree)
