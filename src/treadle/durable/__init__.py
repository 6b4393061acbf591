"""Durable code: steps whose results are stored, so that after a crash the job continues behind the last one."""

from treadle.durable.checkpoints import Checkpoint, Checkpoints, Failure, StepRequest, check_name, error_of, read_entry
from treadle.durable.once import Once, locks_of
from treadle.durable.step_codec import signature_of
from treadle.durable.steps import (
    IN_BATCH,
    REPLACED,
    SWALLOWED,
    Durable,
    DurableBackend,
    DurableRun,
    Suspend,
    is_suspension,
)

__all__ = [
    "IN_BATCH",
    "REPLACED",
    "SWALLOWED",
    "Checkpoint",
    "Checkpoints",
    "Durable",
    "DurableBackend",
    "DurableRun",
    "Failure",
    "Once",
    "StepRequest",
    "Suspend",
    "check_name",
    "error_of",
    "is_suspension",
    "locks_of",
    "read_entry",
    "signature_of",
]
