"""Treadle: background jobs that cannot be lost.

app = App()

@app.task
async def send(to: str) -> int: ...

job = await send.enqueue("a@x.org")
"""

from __future__ import annotations

TYPE_CHECKING = False  # what `typing` says, without importing it
if TYPE_CHECKING:
    from treadle.app import App
    from treadle.core.errors import (
        AnswerTooLarge,
        BadArgument,
        BadCodec,
        BadDependency,
        BadOption,
        BadResult,
        BadSession,
        BadStep,
        BadTask,
        BadUrl,
        DependencyFailed,
        ForeignRow,
        IdTaken,
        JobCancelled,
        JobExpired,
        JobFailed,
        JobNotDone,
        KeyHeld,
        LifespanFailed,
        Locked,
        NotADatabase,
        OldRows,
        ProcessDied,
        QueueFull,
        RemoteFailure,
        SchemaTooNew,
        SchemaTooOld,
        Signalled,
        Stale,
        StepMismatch,
        StorageDenied,
        StorageError,
        StorageFull,
        StorageMoved,
        StorageUnavailable,
        TooLarge,
        TreadleError,
        UnknownJob,
        UnknownName,
        UnknownSchedule,
        UnknownTask,
        UnknownUpstream,
        Unsupported,
        WorkflowFailed,
    )
    from treadle.core.events import Event
    from treadle.core.job import Job, JobSpec
    from treadle.core.limit_model import Limit
    from treadle.core.model import Record, State
    from treadle.execution.context import Context, JobFilter, current, current_batch
    from treadle.execution.middleware import Middleware
    from treadle.execution.run_outcome import RunOutcome
    from treadle.outbox import Outbox
    from treadle.policy.retry import Abort, Defer, Retry
    from treadle.policy.throttle import AIMD
    from treadle.resources import depends
    from treadle.serialization.encryption import Keys
    from treadle.tasks.batch import BatchTask
    from treadle.tasks.options import Key, Sizes
    from treadle.tasks.task import Task
    from treadle.tasks.when import all_done, all_succeeded, at_least
    from treadle.worker import Backlog, Redrive, Worker, WorkerHealth
    from treadle.worker.probes import Probes
    from treadle.workflow.chain import chain
    from treadle.workflow.flow import Conclude, Flow, flow, gather
else:
    from treadle.core.lazy_names import lazy_names as _lazy_names

    __getattr__, __dir__ = _lazy_names(
        __name__,
        globals(),
        {
            "treadle.app": ("App",),
            "treadle.core.events": ("Event",),
            "treadle.core.job": (
                "Job",
                "JobSpec",
            ),
            "treadle.core.limit_model": ("Limit",),
            "treadle.core.model": (
                "Record",
                "State",
            ),
            "treadle.core.errors": (
                "AnswerTooLarge",
                "BadArgument",
                "BadCodec",
                "BadDependency",
                "BadOption",
                "BadResult",
                "BadSession",
                "BadStep",
                "BadTask",
                "BadUrl",
                "DependencyFailed",
                "ForeignRow",
                "IdTaken",
                "JobCancelled",
                "JobExpired",
                "JobFailed",
                "JobNotDone",
                "KeyHeld",
                "LifespanFailed",
                "Locked",
                "NotADatabase",
                "OldRows",
                "ProcessDied",
                "QueueFull",
                "RemoteFailure",
                "SchemaTooNew",
                "SchemaTooOld",
                "Signalled",
                "Stale",
                "StepMismatch",
                "StorageDenied",
                "StorageError",
                "StorageFull",
                "StorageMoved",
                "StorageUnavailable",
                "TooLarge",
                "TreadleError",
                "UnknownJob",
                "UnknownName",
                "UnknownSchedule",
                "UnknownTask",
                "UnknownUpstream",
                "Unsupported",
                "WorkflowFailed",
            ),
            "treadle.execution.context": (
                "Context",
                "JobFilter",
                "current",
                "current_batch",
            ),
            "treadle.execution.middleware": ("Middleware",),
            "treadle.execution.run_outcome": ("RunOutcome",),
            "treadle.worker.probes": ("Probes",),
            "treadle.outbox": ("Outbox",),
            "treadle.serialization.encryption": ("Keys",),
            "treadle.policy.retry": (
                "Abort",
                "Defer",
                "Retry",
            ),
            "treadle.policy.throttle": ("AIMD",),
            "treadle.resources": ("depends",),
            "treadle.tasks.batch": ("BatchTask",),
            "treadle.tasks.options": (
                "Key",
                "Sizes",
            ),
            "treadle.tasks.task": ("Task",),
            "treadle.tasks.when": (
                "all_done",
                "all_succeeded",
                "at_least",
            ),
            "treadle.worker": (
                "Backlog",
                "Redrive",
                "Worker",
                "WorkerHealth",
            ),
            "treadle.workflow.chain": ("chain",),
            "treadle.workflow.flow": (
                "Conclude",
                "Flow",
                "flow",
                "gather",
            ),
        },
    )

del TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "AIMD",
    "Abort",
    "AnswerTooLarge",
    "App",
    "Backlog",
    "BadArgument",
    "BadCodec",
    "BadDependency",
    "BadOption",
    "BadResult",
    "BadSession",
    "BadStep",
    "BadTask",
    "BadUrl",
    "BatchTask",
    "Conclude",
    "Context",
    "Defer",
    "DependencyFailed",
    "Event",
    "Flow",
    "ForeignRow",
    "IdTaken",
    "Job",
    "JobCancelled",
    "JobExpired",
    "JobFailed",
    "JobFilter",
    "JobNotDone",
    "JobSpec",
    "Key",
    "KeyHeld",
    "Keys",
    "LifespanFailed",
    "Limit",
    "Locked",
    "Middleware",
    "NotADatabase",
    "OldRows",
    "Outbox",
    "Probes",
    "ProcessDied",
    "QueueFull",
    "Record",
    "Redrive",
    "RemoteFailure",
    "Retry",
    "RunOutcome",
    "SchemaTooNew",
    "SchemaTooOld",
    "Signalled",
    "Sizes",
    "Stale",
    "State",
    "StepMismatch",
    "StorageDenied",
    "StorageError",
    "StorageFull",
    "StorageMoved",
    "StorageUnavailable",
    "Task",
    "TooLarge",
    "TreadleError",
    "UnknownJob",
    "UnknownName",
    "UnknownSchedule",
    "UnknownTask",
    "UnknownUpstream",
    "Unsupported",
    "Worker",
    "WorkerHealth",
    "WorkflowFailed",
    "all_done",
    "all_succeeded",
    "at_least",
    "chain",
    "current",
    "current_batch",
    "depends",
    "flow",
    "gather",
]
