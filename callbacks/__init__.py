"""Lightning callbacks: evaluation each epoch, and what a run leaves behind."""

from .evaluation import KVPredictionEvaluation
from .last_checkpoint import LastCheckpoint
from .run_record import RunRecord

__all__ = ["KVPredictionEvaluation", "LastCheckpoint", "RunRecord"]
