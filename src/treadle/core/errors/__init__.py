"""Every error that a caller may catch, one class each, with typed fields.

TreadleError
├── BadArgument (TypeError)      a call that does not fit the task's parameters
├── BadOption (ValueError)       an option outside its range
├── BadResult                    a return value that cannot be stored
├── BadCodec (ValueError)        a codec that does not restore the value it encoded
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
├── UnknownVersion               the job began with a version of its task that this code does not have
├── StepFailed                   a step raised an error that cannot be raised again in a later run
├── Signalled                    the job was given that signal before
├── MailboxFull                  a mailbox of a job takes no more messages
├── AskRefused                   the job refused a question
├── AlreadyDecided               a request for approval has its decision
├── MayNotDecide                 this person may not decide that request
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

from types import ModuleType as _Module

from treadle.core.errors.base import ARGUMENTS as ARGUMENTS
from treadle.core.errors.base import CODE as CODE
from treadle.core.errors.base import RESULT as RESULT
from treadle.core.errors.base import UNREADABLE as UNREADABLE
from treadle.core.errors.base import TreadleError as TreadleError
from treadle.core.errors.calls import BadArgument as BadArgument
from treadle.core.errors.calls import BadCodec as BadCodec
from treadle.core.errors.calls import BadOption as BadOption
from treadle.core.errors.calls import BadResult as BadResult
from treadle.core.errors.calls import BadTask as BadTask
from treadle.core.errors.calls import TooLarge as TooLarge
from treadle.core.errors.calls import UnknownSchedule as UnknownSchedule
from treadle.core.errors.calls import UnknownTask as UnknownTask
from treadle.core.errors.jobs import AlreadyDecided as AlreadyDecided
from treadle.core.errors.jobs import AskRefused as AskRefused
from treadle.core.errors.jobs import ForeignRow as ForeignRow
from treadle.core.errors.jobs import IdTaken as IdTaken
from treadle.core.errors.jobs import JobCancelled as JobCancelled
from treadle.core.errors.jobs import JobExpired as JobExpired
from treadle.core.errors.jobs import JobFailed as JobFailed
from treadle.core.errors.jobs import JobNotDone as JobNotDone
from treadle.core.errors.jobs import KeyHeld as KeyHeld
from treadle.core.errors.jobs import MailboxFull as MailboxFull
from treadle.core.errors.jobs import MayNotDecide as MayNotDecide
from treadle.core.errors.jobs import QueueFull as QueueFull
from treadle.core.errors.jobs import Signalled as Signalled
from treadle.core.errors.jobs import Stale as Stale
from treadle.core.errors.jobs import UnknownJob as UnknownJob
from treadle.core.errors.jobs import UnknownUpstream as UnknownUpstream
from treadle.core.errors.jobs import WorkflowFailed as WorkflowFailed
from treadle.core.errors.notices import OldRows as OldRows
from treadle.core.errors.resources import BadDependency as BadDependency
from treadle.core.errors.resources import DependencyFailed as DependencyFailed
from treadle.core.errors.resources import LifespanFailed as LifespanFailed
from treadle.core.errors.resources import ResourceFailed as ResourceFailed
from treadle.core.errors.runs import BadStep as BadStep
from treadle.core.errors.runs import NotRunning as NotRunning
from treadle.core.errors.runs import ProcessDied as ProcessDied
from treadle.core.errors.runs import RemoteFailure as RemoteFailure
from treadle.core.errors.runs import StepFailed as StepFailed
from treadle.core.errors.runs import StepMismatch as StepMismatch
from treadle.core.errors.runs import UnknownVersion as UnknownVersion
from treadle.core.errors.storage import PASSING as PASSING
from treadle.core.errors.storage import AnswerTooLarge as AnswerTooLarge
from treadle.core.errors.storage import BadSession as BadSession
from treadle.core.errors.storage import BadUrl as BadUrl
from treadle.core.errors.storage import EventLoopError as EventLoopError
from treadle.core.errors.storage import Locked as Locked
from treadle.core.errors.storage import MoveFailed as MoveFailed
from treadle.core.errors.storage import NestedTransaction as NestedTransaction
from treadle.core.errors.storage import NotADatabase as NotADatabase
from treadle.core.errors.storage import SchemaTooNew as SchemaTooNew
from treadle.core.errors.storage import SchemaTooOld as SchemaTooOld
from treadle.core.errors.storage import StorageDenied as StorageDenied
from treadle.core.errors.storage import StorageError as StorageError
from treadle.core.errors.storage import StorageFull as StorageFull
from treadle.core.errors.storage import StorageMoved as StorageMoved
from treadle.core.errors.storage import StorageUnavailable as StorageUnavailable
from treadle.core.errors.storage import Unsupported as Unsupported
from treadle.core.errors.text import error_line as error_line
from treadle.core.errors.text import is_ours as is_ours
from treadle.core.errors.text import readable as readable
from treadle.core.errors.text import traceback_of as traceback_of
from treadle.core.errors.text import users_part as users_part

_public = sorted(name for name, value in globals().items() if name[0] != "_" and not isinstance(value, _Module))
__all__ = list(_public)

for _name in __all__:
    if isinstance(_found := globals()[_name], type):
        _found.__module__ = "treadle.errors"  # the public name, which tracebacks and stored errors show
