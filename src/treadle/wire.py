"""What the contract looks like as JSON: one message per verb, and errors that keep their class across the wire.

Without it the server and the storage that speaks to it would each have an idea of their own of the same message.
The data of `treadle.model` travel as they are: objects with the names of their fields, tuples as arrays.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from msgspec import UNSET, Raw, Struct, UnsetType

from treadle import defaults, errors
from treadle.model import Claim, Claimed, Hold, Limit, NewJob, Outcome, Pairs, Presence, Record, Settled, State

# --- one message per verb: what is asked, and what is answered


class Enqueue(Struct, frozen=True):
    jobs: tuple[NewJob, ...]


class Records(Struct, frozen=True):
    records: tuple[Record | None, ...]


class Ids(Struct, frozen=True):
    ids: tuple[str, ...]


class ClaimCall(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A `Claim`, and how long to wait for work.

    wait      s to wait while there is none, up to 30; 0: answer at once
    max_lost  jobs whose leases ran out this often are not handed out: the server ends them as failed. None: the
              caller judges, as Treadle's own workers do
    """

    worker: str
    queues: tuple[tuple[str, int], ...] = ((defaults.QUEUE, 1),)
    tasks: dict[str, tuple[int | None, float | None]] | None = None
    limit: int = 1
    lease: float = defaults.LEASE
    ids: tuple[str, ...] = ()
    holds: tuple[str, ...] = ()
    wait: float = 0.0
    max_lost: int | None = None

    def ask(self) -> Claim:
        return Claim(
            worker=self.worker, queues=self.queues, tasks=self.tasks, limit=self.limit, lease=self.lease, ids=self.ids,
            holds=self.holds,
        )  # fmt: skip


def claim_call(ask: Claim) -> ClaimCall:
    """The same words, to be sent."""
    return ClaimCall(
        worker=ask.worker, queues=ask.queues, tasks=ask.tasks, limit=ask.limit, lease=ask.lease, ids=ask.ids,
        holds=ask.holds,
    )  # fmt: skip


class Beat(Struct, frozen=True):
    worker: Presence
    holds: tuple[Hold, ...] = ()
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
    memo: Pairs = ()
    note: str | None = None
    then: tuple[NewJob, ...] = ()
    after: tuple[str, ...] = ()
    need: int | None = None
    slack: int | None = None
    ran: bool = False
    keep: float | None = None
    succeed: Raw | UnsetType = UNSET
    fail: str | None = None
    abort: str | None = None
    defer: float | None = None
    again: bool = False

    def outcome(self) -> Outcome:
        """Word for word; only where `state` is given."""
        assert self.state is not None
        return Outcome(
            id=self.id, version=self.version, state=self.state, delay=self.delay, attempt=self.attempt,
            result=self.result, value=self.value, error=self.error, reason=self.reason, memo=self.memo, note=self.note,
            then=self.then, after=self.after, need=self.need, slack=self.slack, ran=self.ran, keep=self.keep,
        )  # fmt: skip


class Outcomes(Struct, frozen=True):
    outcomes: tuple[Outcome, ...]


class Settle(Struct, frozen=True):
    outcomes: tuple[Report, ...]


class AllSettled(Struct, frozen=True):
    settled: tuple[Settled, ...]


class SettleClaim(Struct, frozen=True):
    outcomes: tuple[Outcome, ...]
    claim: ClaimCall


class SettledClaimed(Struct, frozen=True):
    settled: tuple[Settled, ...]
    claimed: Claimed


class Limits(Struct, frozen=True):
    limits: tuple[Limit, ...]


class Prune(Struct, frozen=True):
    limit: int = defaults.PRUNE_STEP


class Number(Struct, frozen=True):
    number: int


class Watch(Struct, frozen=True):
    topics: tuple[str, ...]
    timeout: float = defaults.WATCH


class Topics(Struct, frozen=True):
    topics: tuple[str, ...]


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
    "unknown_job": (errors.UnknownJob, 422, ("id", "waiting")),
    "key_held": (errors.KeyHeld, 409, ("key", "id")),
    "stale": (errors.Stale, 409, ("id", "found")),
    "no_such_job": (errors.JobUnknown, 404, ("id",)),
    "no_such_schedule": (errors.UnknownSchedule, 404, ("name",)),
    "bad_option": (errors.BadOption, 422, ("option", "problem")),
    "bad_argument": (errors.BadArgument, 422, ("task", "parameter", "problem")),
    "unknown_task": (errors.UnknownTask, 422, ("name", "known", "like")),
    "too_large": (errors.TooLarge, 422, ("what", "size", "limit")),
    "storage_full": (errors.StorageFull, 503, ()),
    "storage_unavailable": (errors.StorageUnavailable, 503, ()),
    "storage_error": (errors.StorageError, 500, ()),
}


def problem_of(error: errors.TreadleError) -> tuple[int, Problem]:
    """The HTTP status and the words of an error of the library."""
    for word, (kind, status, fields) in WORDS.items():
        if type(error) is kind:
            return status, Problem(word, str(error), {name: getattr(error, name) for name in fields})
    if isinstance(error, errors.StorageError):
        return 500, Problem("storage_error", str(error))
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
    "enqueue", "claim", "heartbeat", "settle", "settle_claim", "get", "find", "stats", "set_limits", "prune", "watch"
]  # fmt: skip
