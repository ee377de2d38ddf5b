"""The errors a user can cause, each with a one-line message that names the cause and the remedy.

The command line prints the message of a `KVPredictionError` as its only line on stderr and exits
with status 1; every other exception is a defect of this package or of one below it.
"""

from __future__ import annotations


class KVPredictionError(Exception):
    """Base of all errors that this package raises on purpose."""


class ConfigurationError(KVPredictionError):
    """A setting is missing, unknown, or contradicts another one."""


class DataError(KVPredictionError):
    """Training text or evaluation prompts are missing, empty or malformed."""


class BaseModelError(KVPredictionError):
    """A base model cannot be found, read or converted."""


class UnsupportedFamilyError(BaseModelError):
    """The model family does something that predicted caches cannot serve."""


class TokenizerMismatchError(KVPredictionError):
    """Two tokenizers that must agree token by token do not."""


class CheckpointError(KVPredictionError):
    """A checkpoint or artefact is missing, truncated, or belongs to something else."""


class PromptError(KVPredictionError):
    """A prompt is empty or longer than the model's positions."""


class NonFiniteLossError(KVPredictionError):
    """The training loss became NaN or infinite."""
