"""A training loader that continues at the exact batch where a checkpoint was written.

Lightning saves and restores the state of loaders that have `state_dict` and `load_state_dict`, but
two of its habits make a plain count of delivered batches wrong. A loader of unknown length is
read one batch ahead, and a batch whose training step failed was delivered yet not trained on. The
position is therefore taken from Lightning's count of processed batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from lightning.pytorch import Trainer

from lit_kvpred.errors import CheckpointError

from .rows import Batch

OpenEpoch = Callable[[int, int], Iterator[Batch]]
"""(epoch, batches to leave out at its start) -> the other batches of the epoch."""


class Position(NamedTuple):
    """A place in the endless sequence of training batches.

    Attributes:
        epoch: Epoch, from 0.
        batches: Batches of the epoch that training is done with.
        finished: Whether the epoch is over, be it with fewer batches than there are.
    """

    epoch: int = 0
    batches: int = 0
    finished: bool = False

    def next_epoch(self) -> Position:
        """Returns where a loop that starts an epoch anew goes on: not in a begun epoch."""
        begun = self.batches > 0 or self.finished
        return Position(self.epoch + begun)


class Counts(NamedTuple):
    """What training has done so far.

    Attributes:
        trained: Batches trained on since the start of the run.
        epoch_over: Whether the last of them ended its epoch.
        restarts_in_next: Whether a loop restored now would begin the next epoch at once.
    """

    trained: int
    epoch_over: bool
    restarts_in_next: bool


def lightning_counts(trainer: Trainer) -> Counts:
    """Reads the counts from a trainer's fit loop."""
    progress = trainer.fit_loop.epoch_loop.batch_progress
    over = progress.is_last_batch and progress.current.processed == progress.current.ready
    # Restored from within `on_train_batch_end` of an epoch's last batch, the fit loop counts the
    # epoch as done and opens the next one on the very iterator it restored.
    within_hook = progress.current.completed < progress.current.processed
    return Counts(progress.total.processed, over, over and within_hook)


class ResumableLoader(Iterable[Batch]):
    """Endless epochs of batches with a position that can be saved and restored.

    Every `iter()` continues after what was trained on: in the same place when nothing was, at the
    start of the next epoch otherwise. Nothing is read before the first `next()`.

    It is no `DataLoader` on purpose: Lightning then neither replaces its sampler nor rebuilds it.

    Args:
        open_epoch: Opens an epoch at a batch.
        start: Where the first iterator starts.
        length: Batches of an epoch; None when it is not known beforehand.
        counts: What training has done; None to count the batches handed out, outside a trainer.
    """

    def __init__(
        self,
        open_epoch: OpenEpoch,
        *,
        start: Position,
        length: int | None,
        counts: Callable[[], Counts] | None = None,
    ) -> None:
        self._open_epoch = open_epoch
        self._origin = start
        self._length = length
        self._counts = counts or self._own_counts
        self._opened = False
        self._trained_before = 0
        self._delivered = 0
        self._exhausted = False

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError("the number of batches of a stream is not known")
        return self._length

    def __iter__(self) -> Iterator[Batch]:
        if self._opened:
            here = self.position
            self._origin = here.next_epoch() if here != self._origin or here.finished else here
        self._opened = True
        self._trained_before = self._counts().trained
        return self._batches(self._origin)

    @property
    def position(self) -> Position:
        """The place up to which training has come."""
        counts = self._counts()
        trained = counts.trained - self._trained_before
        if not self._opened or trained == 0:
            return self._origin
        if counts.restarts_in_next:
            return Position(self._origin.epoch + 1)
        return Position(self._origin.epoch, self._origin.batches + trained, counts.epoch_over)

    def state_dict(self) -> dict[str, Any]:
        """Returns the position as plain values."""
        return self.position._asdict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Moves to a saved position; the next iterator starts there.

        Raises:
            CheckpointError: The state was written by another kind of loader.
        """
        try:
            self._origin = Position(**state)
        except TypeError as error:
            raise CheckpointError(
                f"the checkpoint's loader state {sorted(state)} is none of this data module; train"
                " on with the data module that wrote it"
            ) from error
        self._opened = False

    def _batches(self, start: Position) -> Iterator[Batch]:
        self._exhausted = False
        if not start.finished:
            for batch in self._open_epoch(start.epoch, start.batches):
                self._delivered += 1
                yield batch
        self._exhausted = True

    def _own_counts(self) -> Counts:
        return Counts(self._delivered, self._exhausted, restarts_in_next=False)


def check_settings(saved: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Refuses to continue a run on data that would give another sequence of batches.

    Args:
        saved: The data settings in the checkpoint.
        current: Those of this run.

    Raises:
        CheckpointError: A setting differs; the message names it.
    """
    for name, value in current.items():
        if name in saved and saved[name] == value:
            continue
        was = saved.get(name, "absent")
        raise CheckpointError(
            f"cannot resume: the checkpoint was trained with {name}={was}, this run has"
            f" {name}={value}; use the same data settings or start a new run"
        )
