"""The HTTP messages of the worker protocol: a request and an answer for each method of the contract, and errors.

`HttpStorage` and the server use the same definitions. Values of `treadle.core.model` are sent unchanged: objects with
the names of their fields, tuples as arrays. A request from outside is not trusted, so its lists have bounds. The log of
the composed storage has its own definitions, for which docs/internals/decisions/log-entries.md gives the reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Annotated, Any, Final, Self, TypeVar

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from treadle.core import defaults, errors
from treadle.core.limit_model import Declare, Limit, LimitChange, LimitUse, Pause, Resume
from treadle.core.model import Claim, Claimed, LeaseRenewal, NewJob, Outcome, Pairs, Presence, Record, Settled, State
from treadle.core.query_model import CountDrift, MetricsRow

LONG: Final = 100_000  # entries of any list of a request
FEW: Final = 10_000  # queues or tasks of one claim

# --- requests and answers

A = TypeVar("A")
Many = Annotated[tuple[A, ...], Meta(max_length=LONG)]


class Enqueue(Struct, frozen=True):
    jobs: Many[NewJob]


class Records(Struct, frozen=True):
    records: tuple[Record | None, ...]


class Ids(Struct, frozen=True):
    ids: Many[str]


class HeartbeatResult(Struct, frozen=True, omit_defaults=True):
    """The answer to a heartbeat.

    ids      jobs that the worker no longer holds: stop running them
    unsaved  jobs that it still holds, but whose row another transaction has locked: nothing was stored, send the
             renewal again
    """

    ids: tuple[str, ...]
    unsaved: tuple[str, ...] = ()


class TaskNeeds(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The needs of a task: `requires` and `uses` of `@app.task`. A label without values may have any."""

    requires: dict[str, tuple[str, ...]] = {}
    uses: dict[str, int] = {}


class ClaimCall(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A `Claim`, and how long to wait for work.

    wait      seconds to wait while no job can start, up to 30; 0: answer at once
    max_lost  the server fails jobs whose leases expired this often and does not return them. None: the caller
              decides, as Treadle's own workers do
    labels    of the worker; with them or with `resources`, only tasks whose needs these meet are claimed, and only as
              many jobs as fit together
    resources what the worker has free now
    needs     of its tasks, where the app of the server does not declare them
    most      bytes of the answer: jobs that do not fit stay queued, and a job that alone is larger fails. None: no
              bound
    """

    worker: str
    queues: Annotated[tuple[tuple[str, int], ...], Meta(max_length=FEW)] = ((defaults.QUEUE, 1),)
    tasks: Annotated[dict[str, tuple[int | None, float | None]], Meta(max_length=FEW)] | None = None
    limit: int = 1
    lease: float = defaults.LEASE
    ids: Many[str] = ()
    running: Many[str] = ()
    reach: Many[str] = ()
    wait: float = 0.0
    max_lost: int | None = None
    most: Annotated[int, Meta(ge=2**20)] | None = None
    labels: dict[str, str] | None = None
    resources: dict[str, int] | None = None
    needs: Annotated[dict[str, TaskNeeds], Meta(max_length=FEW)] = {}

    def ask(self) -> Claim:
        return Claim(**dict(zip(_OF_CLAIM, _of_claim(self), strict=True)))


_OF_CLAIM: Final = tuple(name for name in ClaimCall.__struct_fields__ if name in Claim.__struct_fields__)
_of_claim: Final = attrgetter(*_OF_CLAIM)


def claim_call(ask: Claim, most: int) -> ClaimCall:
    """The request for a claim. `hand_off` is not sent: it names a mailbox on this machine."""
    return ClaimCall(most=most, **dict(zip(_OF_CLAIM, _of_claim(ask), strict=True)))


class Beat(Struct, frozen=True):
    worker: Presence
    renewals: Many[LeaseRenewal] = ()
    lease: float = defaults.LEASE


class RunReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The end of a run. With `state`, the fields of an `Outcome`, which are stored unchanged. Otherwise one of

    succeed  any JSON: the result
    fail     the error, a text: the server decides by the policy of the row whether the job is retried
    abort    the error, a text: the job fails and is not retried
    defer    seconds until the job runs again, without counting an attempt; 0 keeps its queue position

    `followups` are jobs that this run creates: its children, stored with the report or not at all. An empty id is
    derived. The job waits for them, and the server ends it when the last of them has ended: with the value of `succeed`
    as its own result, else with the result of the last child. With `again`, which excludes all of the above, the job is
    claimed again when the children have ended, whatever their state, and their ids are in `after`.

    `spent` is what the run has really spent of its limits: a pair for each, with its name as in `limits` of the job and
    the cost. It goes with any of the above.
    """

    id: str
    version: int
    state: State | None = None
    delay: float = 0.0
    attempt: int = 0
    result: str | None = None
    value: str | None = None
    error: str | None = None
    reason: str | None = None
    checkpoints: Annotated[Pairs, Meta(max_length=LONG)] = ()
    note: str | None = None
    followups: Many[NewJob] = ()
    after: Many[str] = ()
    required: int | None = None
    failures_allowed: int | None = None
    function_done: bool = False
    keep: float | None = None
    reach: Many[str] = ()
    spent: Annotated[tuple[tuple[str, int], ...], Meta(max_length=defaults.MAX_LIMITS)] = ()
    succeed: Raw | UnsetType = UNSET
    fail: str | None = None
    abort: str | None = None
    defer: float | None = None
    again: bool = False

    def outcome(self) -> Outcome:
        """The outcome of a report that has a `state`."""
        assert self.state is not None
        return Outcome(**dict(zip(Outcome.__struct_fields__, _of_outcome(self), strict=True)))


_of_outcome: Final = attrgetter(*Outcome.__struct_fields__)


class Outcomes(Struct, frozen=True):
    outcomes: Many[Outcome]


class Settle(Struct, frozen=True):
    outcomes: Many[RunReport]


class AllSettled(Struct, frozen=True):
    settled: tuple[Settled, ...]


class SettleClaim(Struct, frozen=True):
    outcomes: Many[Outcome]
    claim: ClaimCall


class SettledClaimed(Struct, frozen=True):
    settled: tuple[Settled, ...]
    claimed: Claimed


class SetRule(Struct, frozen=True, tag="set"):
    """An operator's rule. Without slots and rate it removes the rule, and the declared one with it."""

    rule: Limit


class LimitChanges(Struct, frozen=True):
    """Changes of limits, applied in order and in one step. `type` is set, declare, pause or resume."""

    changes: Many[SetRule | Declare | Pause | Resume]

    @classmethod
    def of(cls, changes: Iterable[LimitChange]) -> Self:
        return cls(tuple(SetRule(change) if isinstance(change, Limit) else change for change in changes))

    def read(self) -> list[LimitChange]:
        return [change.rule if isinstance(change, SetRule) else change for change in self.changes]


class LimitsCall(Struct, frozen=True):
    """`use`: return also the slots in use of each limit, and how many jobs it blocks."""

    use: bool = True


class LimitUses(Struct, frozen=True):
    limits: tuple[LimitUse, ...]


class Recount(Struct, frozen=True):
    """`repair`: correct the kept counts."""

    repair: bool = False


class Drifts(Struct, frozen=True):
    """The groups of jobs whose kept count differs from the rows."""

    drifts: tuple[CountDrift, ...]


class GlanceCall(Struct, frozen=True):
    """`most`: jobs that are counted of each kind."""

    most: int = 10_000


class StoreMetrics(Struct, frozen=True):
    rows: Many[MetricsRow]
    remove: Many[MetricsRow] = ()


class ReadMetrics(Struct, frozen=True):
    """The rows whose span overlaps [since, until), seconds since 1970."""

    since: float
    until: float


class MetricsRows(Struct, frozen=True):
    rows: tuple[MetricsRow, ...]


class Prune(Struct, frozen=True):
    limit: int = defaults.PRUNE_STEP


class Number(Struct, frozen=True):
    number: int


class Watch(Struct, frozen=True):
    topics: Many[str]
    timeout: float = defaults.WATCH


class Topics(Struct, frozen=True):
    topics: tuple[str, ...]


class Moving(Struct, frozen=True):
    """The role of a storage in a move (see `storage.transfer.MoveState`), and the other storage's URL, masked."""

    role: str
    other: str


class Hello(Struct, frozen=True):
    """The limits of a server, and the rights of the token.

    max_body  the most bytes a request may have; None if the server does not say
    scopes    the scopes of the token
    queues    the queues that the token is bound to; empty: all
    moving    the move that the server's storage is part of; None: no move, or the storage is unavailable
    texts     whether the server offloads or encrypts by itself, so that rows come with their texts
    passes    whether it stores arguments that are encrypted or in a blob store and that it cannot read
    """

    max_body: int | None = None
    scopes: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    moving: Moving | None = None
    texts: bool = False
    passes: bool = True


class Nothing(Struct, frozen=True):
    """A request without fields, or an answer that only confirms."""


# --- errors


class Problem(Struct, frozen=True, omit_defaults=True):
    """Every error: a code for programs, a message for people, and the fields of the error class."""

    error: str
    message: str
    details: dict[str, Any] = {}


Fault = type[errors.TreadleError]

WORDS: Final[dict[str, tuple[Fault, int, tuple[str, ...]]]] = {
    # code: the error class, the HTTP status, the fields from which the client makes the error again
    "unknown_upstream": (errors.UnknownUpstream, 422, ("id", "waiting")),
    "key_held": (errors.KeyHeld, 409, ("key", "id")),
    "queue_full": (errors.QueueFull, 429, ("queue", "max_waiting", "waiting", "asked", "retry_after")),
    "id_taken": (errors.IdTaken, 422, ("id", "task", "asked", "other")),
    "foreign_row": (errors.ForeignRow, 409, ("id", "found", "expected")),
    "signalled": (errors.Signalled, 409, ("id", "name")),
    "mailbox_full": (errors.MailboxFull, 429, ("id", "name", "most")),
    "ask_refused": (errors.AskRefused, 409, ("id", "name", "why")),
    "already_decided": (errors.AlreadyDecided, 409, ("id", "name", "approved", "by", "reason", "at")),
    "may_not_decide": (errors.MayNotDecide, 403, ("id", "name", "by", "user")),
    "stale": (errors.Stale, 409, ("id", "found")),
    "no_such_job": (errors.UnknownJob, 404, ("id",)),
    "no_such_schedule": (errors.UnknownSchedule, 404, ("name", "like")),
    "bad_option": (errors.BadOption, 422, ("option", "problem")),
    "bad_argument": (errors.BadArgument, 422, ("task", "parameter", "problem")),
    "unknown_task": (errors.UnknownTask, 422, ("name", "known", "like")),
    "too_large": (errors.TooLarge, 422, ("what", "size", "limit")),
    "storage_moved": (errors.StorageMoved, 410, ("storage", "target")),
    # 503, because older clients do not know the code, and repeat a call after that status
    "locked": (errors.Locked, 503, ("where", "what", "jobs", "pid", "application", "age", "state")),
    "storage_full": (errors.StorageFull, 503, ()),
    "storage_denied": (errors.StorageDenied, 503, ()),
    "storage_unavailable": (errors.StorageUnavailable, 503, ()),
    "storage_error": (errors.StorageError, 500, ()),
}

_words: Final = {kind: word for word, (kind, _, _) in WORDS.items()}


def problem_of(error: errors.TreadleError) -> tuple[int, Problem]:
    """The HTTP status and the body for an error. A class that is not in the table has the code of its nearest base."""
    for base in type(error).__mro__:
        if (word := _words.get(base)) is not None:
            _, status, fields = WORDS[word]
            return status, Problem(word, str(error), {name: getattr(error, name) for name in fields})
    return 422, Problem("refused", str(error))


def error_of(problem: Problem) -> errors.TreadleError:
    """The error that the server raised; a StorageError if this version does not know its code."""
    kind, _, fields = WORDS.get(problem.error, (errors.StorageError, 0, ()))
    if not fields:
        return kind(problem.message)
    try:
        error: errors.TreadleError = kind(**{name: problem.details.get(name) for name in fields})
    except (TypeError, ValueError):
        return errors.StorageError(f"{problem.error}: {problem.message}")
    return error
