"""Every error that a caller may catch, one class each, with typed fields.

TreadleError
├── BadArgument (TypeError)      a call that does not fit the task's parameters
├── BadOption (ValueError)       an option outside its range
├── BadResult                    a return value that cannot be stored
├── BadCodec (ValueError)        a codec that does not restore the value it encoded
├── NotAwaited (RuntimeError)    a coroutine created where nothing can await it
├── BadTask (ValueError)         a function that cannot be a task, or a name taken twice
├── TooLarge (ValueError)        a text beyond its size limit
├── UnknownTask (LookupError)    no such task in this app
├── UnknownSchedule (LookupError)  no schedule of that name is stored
├── KeyHeld                      an unfinished job holds the key
├── QueueFull                    a bounded queue has no room for the jobs of the call
├── IdTaken                      a job with this id is stored, of another task or with other arguments
├── ForeignRow                   a row that Treadle derives was stored by another caller
├── MoveFailed                   `treadle storage move` cannot continue; nothing was lost
├── Stale                        another caller settled or claimed the job meanwhile
├── BadStep (ValueError)         durable code that a later run could not repeat
├── StepMismatch                 the function takes other steps than the run that began the job
├── Signalled                    the job was given that signal before
├── BadDependency (ValueError)   a provider that cannot work, or a direct call without its value
├── ResourceFailed               a worker cannot open what its jobs share
│   ├── LifespanFailed           the lifespan of the app raised, or yields never or twice
│   └── DependencyFailed         a dependency of the process raised
├── NotRunning (RuntimeError)    a call that needs a running job was made outside of one
├── RemoteFailure                the exception of a function in a separate process
├── ProcessDied                  the process of such a function died
├── JobNotDone                   a job did not succeed, or has not ended
│   ├── JobFailed
│   │   ├── JobExpired           its deadline passed
│   │   └── WorkflowFailed       (ExceptionGroup) descendants of the job did not succeed
│   └── JobCancelled
├── UnknownJob (LookupError)     no such job, or it was pruned
│   └── UnknownUpstream          `after` names a job that is not stored
└── StorageError                 the storage refused the call or is unavailable
    ├── BadUrl (ValueError)
    ├── StorageUnavailable       cannot be reached; a retry may succeed
    │   └── AnswerTooLarge       a response above the client's limit
    ├── Locked                   another open transaction holds what the call needs
    ├── StorageFull              no space, or read-only; nothing was stored
    ├── StorageDenied            wrong credentials, or a user without the rights it needs
    ├── SchemaTooNew             written by a newer Treadle
    ├── SchemaTooOld             opened only to be read, and not created or migrated yet
    ├── NotADatabase             not a Treadle database, or a file whose folder does not exist
    ├── Unsupported              this kind of storage cannot do that
    ├── BadSession (ValueError)  a user's transaction that jobs cannot join
    ├── StorageMoved             its jobs were moved to another storage
    └── NestedTransaction        a call inside a transaction that would wait for its end
        └── EventLoopError (RuntimeError)  the app is open on an event loop that cannot carry the call out
"""

from __future__ import annotations

from treadle.core.errors.base import ARGUMENTS, CODE, RESULT, UNREADABLE, TreadleError
from treadle.core.errors.calls import (
    BadArgument,
    BadCodec,
    BadOption,
    BadResult,
    BadTask,
    NotAwaited,
    TooLarge,
    UnknownSchedule,
    UnknownTask,
)
from treadle.core.errors.jobs import (
    ForeignRow,
    IdTaken,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobNotDone,
    KeyHeld,
    QueueFull,
    Signalled,
    Stale,
    UnknownJob,
    UnknownUpstream,
    WorkflowFailed,
)
from treadle.core.errors.notices import OldRows, UnknownName
from treadle.core.errors.resources import BadDependency, DependencyFailed, LifespanFailed, ResourceFailed
from treadle.core.errors.runs import BadStep, NotRunning, ProcessDied, RemoteFailure, StepMismatch
from treadle.core.errors.storage import (
    PASSING,
    AnswerTooLarge,
    BadSession,
    BadUrl,
    EventLoopError,
    Locked,
    MoveFailed,
    NestedTransaction,
    NotADatabase,
    SchemaTooNew,
    SchemaTooOld,
    StorageDenied,
    StorageError,
    StorageFull,
    StorageMoved,
    StorageUnavailable,
    Unsupported,
)
from treadle.core.errors.text import error_line, is_ours, readable, traceback_of, users_part

__all__ = [
    "ARGUMENTS",
    "CODE",
    "PASSING",
    "RESULT",
    "UNREADABLE",
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
    "EventLoopError",
    "ForeignRow",
    "IdTaken",
    "JobCancelled",
    "JobExpired",
    "JobFailed",
    "JobNotDone",
    "KeyHeld",
    "LifespanFailed",
    "Locked",
    "MoveFailed",
    "NestedTransaction",
    "NotADatabase",
    "NotAwaited",
    "NotRunning",
    "OldRows",
    "ProcessDied",
    "QueueFull",
    "RemoteFailure",
    "ResourceFailed",
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
    "error_line",
    "is_ours",
    "readable",
    "traceback_of",
    "users_part",
]

for _name in __all__:
    if isinstance(_found := globals()[_name], type):
        _found.__module__ = "treadle.errors"  # the public name, which tracebacks and stored errors show
