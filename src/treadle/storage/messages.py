"""What the contract looks like as JSON: one message per verb, and errors that keep their class across the wire.

Without it the server and the storage that speaks to it would each have an idea of their own of the same message.
The data of `treadle.core.model` travel as they are: objects with the names of their fields, tuples as arrays.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal, TypeVar

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from treadle import errors
from treadle.core import defaults
from treadle.core.model import (
    Claim,
    Claimed,
    Declare,
    Hold,
    Limit,
    LimitChange,
    LimitUse,
    NewJob,
    Outcome,
    Pairs,
    Pause,
    Presence,
    Record,
    Resume,
    Settled,
    State,
)

LONG: Final = 100_000  # entries of any list that is asked with
FEW: Final = 10_000  # queues or tasks of one claim

# --- one message per verb: what is asked, and what is answered

A = TypeVar("A")
Many = Annotated[tuple[A, ...], Meta(max_length=LONG)]


class Enqueue(Struct, frozen=True):
    jobs: Many[NewJob]


class Records(Struct, frozen=True):
    records: tuple[Record | None, ...]


class Ids(Struct, frozen=True):
    ids: Many[str]


class Held(Struct, frozen=True, omit_defaults=True):
    """The answer to a heartbeat.

    ids      held no longer: stop running them
    unsaved  still held, but nothing of the hold was stored, as another transaction has the row: send it again
    """

    ids: tuple[str, ...]
    unsaved: tuple[str, ...] = ()


class ClaimCall(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A `Claim`, and how long to wait for work.

    wait      s to wait while there is none, up to 30; 0: answer at once
    max_lost  jobs whose leases ran out this often are not handed out: the server ends them as failed. None: the
              caller judges, as Treadle's own workers do
    most      bytes of the answer: jobs that do not fit stay in line, and one that alone is larger fails. None: any
    """

    worker: str
    queues: Annotated[tuple[tuple[str, int], ...], Meta(max_length=FEW)] = ((defaults.QUEUE, 1),)
    tasks: Annotated[dict[str, tuple[int | None, float | None]], Meta(max_length=FEW)] | None = None
    limit: int = 1
    lease: float = defaults.LEASE
    ids: Many[str] = ()
    holds: Many[str] = ()
    reach: Many[str] = ()
    wait: float = 0.0
    max_lost: int | None = None
    most: Annotated[int, Meta(ge=2**20)] | None = None

    def ask(self) -> Claim:
        return Claim(
            worker=self.worker,
            queues=self.queues,
            tasks=self.tasks,
            limit=self.limit,
            lease=self.lease,
            ids=self.ids,
            holds=self.holds,
            reach=self.reach,
        )


def claim_call(ask: Claim, most: int) -> ClaimCall:
    """The same words, to be sent."""
    return ClaimCall(
        worker=ask.worker,
        queues=ask.queues,
        tasks=ask.tasks,
        limit=ask.limit,
        lease=ask.lease,
        ids=ask.ids,
        holds=ask.holds,
        reach=ask.reach,
        most=most,
    )


class Beat(Struct, frozen=True):
    worker: Presence
    holds: Many[Hold] = ()
    lease: float = defaults.LEASE


class Report(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a run. Either the fields of an `Outcome`, with `state`: assigned as they are. Or one of

    succeed  any JSON: the result
    fail     a text: the server decides by the policy of the row whether it is tried again
    abort    a text: failed, not tried again
    defer    s: again later, uncounted; 0 keeps its turn
    With `then`, jobs that come of this run: its children, stored with the report or not at all. An empty id is derived.
    The job waits for them, and the server ends it when the last of them has ended: with the value of `succeed` as its
    own result, else with that of the last child. `again` beside `then`, instead of any of the above: it is handed out
    again instead when they have ended, however, and finds their ids in `after`.
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
    memo: Annotated[Pairs, Meta(max_length=LONG)] = ()
    note: str | None = None
    then: Many[NewJob] = ()
    after: Many[str] = ()
    need: int | None = None
    slack: int | None = None
    ran: bool = False
    keep: float | None = None
    reach: Many[str] = ()
    succeed: Raw | UnsetType = UNSET
    fail: str | None = None
    abort: str | None = None
    defer: float | None = None
    again: bool = False

    def outcome(self) -> Outcome:
        """Word for word; only where `state` is given."""
        assert self.state is not None
        return Outcome(
            id=self.id,
            version=self.version,
            state=self.state,
            delay=self.delay,
            attempt=self.attempt,
            result=self.result,
            value=self.value,
            error=self.error,
            reason=self.reason,
            memo=self.memo,
            note=self.note,
            then=self.then,
            after=self.after,
            need=self.need,
            slack=self.slack,
            ran=self.ran,
            keep=self.keep,
            reach=self.reach,
        )


class Outcomes(Struct, frozen=True):
    outcomes: Many[Outcome]


class Settle(Struct, frozen=True):
    outcomes: Many[Report]


class AllSettled(Struct, frozen=True):
    settled: tuple[Settled, ...]


class SettleClaim(Struct, frozen=True):
    outcomes: Many[Outcome]
    claim: ClaimCall


class SettledClaimed(Struct, frozen=True):
    settled: tuple[Settled, ...]
    claimed: Claimed


class SetRule(Struct, frozen=True, tag="set"):
    """An operator's rule; with neither slots nor rate it is removed, and the declared one with it."""

    rule: Limit


class LimitChanges(Struct, frozen=True):
    """Changes of limits, applied in their order and in one step. `type` says which: set, declare, pause, resume."""

    changes: Many[SetRule | Declare | Pause | Resume]

    @classmethod
    def of(cls, changes: Iterable[LimitChange]) -> LimitChanges:
        return cls(tuple(SetRule(each) if isinstance(each, Limit) else each for each in changes))

    def read(self) -> list[LimitChange]:
        return [each.rule if isinstance(each, SetRule) else each for each in self.changes]


class LimitsCall(Struct, frozen=True):
    """`use`: also how much of each is taken, and how many jobs stand aside."""

    use: bool = True


class LimitUses(Struct, frozen=True):
    limits: tuple[LimitUse, ...]


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
    """The role of a storage in a move (see `storage.carrying.Mark`), and the other storage's URL, masked."""

    role: str
    other: str


class Hello(Struct, frozen=True):
    """What a server says of itself and of the token.

    max_body  the most bytes a request may have; None where the server does not say
    scopes    what the token may do; queues: of which queues it is, (): of all
    moving    the move its storage is part of; None: no move, or the storage is away
    """

    max_body: int | None = None
    scopes: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    moving: Moving | None = None


class Nothing(Struct, frozen=True):
    """An answer that says only that it was done."""


# --- errors


class Problem(Struct, frozen=True, omit_defaults=True):
    """The one shape of every error: a word for programs, a sentence for people, and the fields of the class."""

    error: str
    message: str
    details: dict[str, Any] = {}


Fault = type[errors.TreadleError]

WORDS: Final[dict[str, tuple[Fault, int, tuple[str, ...]]]] = {
    # word: its class, the HTTP status, the fields that make it again
    "unknown_upstream": (errors.UnknownUpstream, 422, ("id", "waiting")),
    "key_held": (errors.KeyHeld, 409, ("key", "id")),
    "id_taken": (errors.IdTaken, 422, ("id", "task", "asked", "other")),
    "foreign_row": (errors.ForeignRow, 409, ("id", "found", "expected")),
    "signalled": (errors.Signalled, 409, ("id", "name")),
    "stale": (errors.Stale, 409, ("id", "found")),
    "no_such_job": (errors.UnknownJob, 404, ("id",)),
    "no_such_schedule": (errors.UnknownSchedule, 404, ("name", "like")),
    "bad_option": (errors.BadOption, 422, ("option", "problem")),
    "bad_argument": (errors.BadArgument, 422, ("task", "parameter", "problem")),
    "unknown_task": (errors.UnknownTask, 422, ("name", "known", "like")),
    "too_large": (errors.TooLarge, 422, ("what", "size", "limit")),
    "storage_moved": (errors.StorageMoved, 410, ("storage", "target")),
    "storage_full": (errors.StorageFull, 503, ()),
    "storage_denied": (errors.StorageDenied, 503, ()),
    "storage_unavailable": (errors.StorageUnavailable, 503, ()),
    "storage_error": (errors.StorageError, 500, ()),
}

_words: Final = {kind: word for word, (kind, _, _) in WORDS.items()}


def problem_of(error: errors.TreadleError) -> tuple[int, Problem]:
    """The HTTP status and the words of an error of the library; those of its nearest base where it has none."""
    for base in type(error).__mro__:
        if (word := _words.get(base)) is not None:
            _, status, fields = WORDS[word]
            return status, Problem(word, str(error), {name: getattr(error, name) for name in fields})
    return 422, Problem("refused", str(error))


def error_of(problem: Problem) -> errors.TreadleError:
    """The error it was on the other side; a StorageError where this side does not know its class."""
    kind, _, fields = WORDS.get(problem.error, (errors.StorageError, 0, ()))
    if not fields:
        return kind(problem.message)
    try:
        made: errors.TreadleError = kind(**{name: problem.details.get(name) for name in fields})
    except (TypeError, ValueError):
        return errors.StorageError(f"{problem.error}: {problem.message}")
    return made


Verb = Literal[
    "enqueue",
    "claim",
    "heartbeat",
    "settle",
    "settle_claim",
    "get",
    "find",
    "stats",
    "limits",
    "set_limits",
    "prune",
    "watch",
]
