"""The words of the library: the plain frozen data that crosses the seam between engine and storage.

Durations go in, instants come out; only the storage reads a clock. All of it is strings, numbers and
tuples, so every storage, the HTTP face and a runner in another language can say the same things.

Structs, not dataclasses: a frozen dataclass of this width costs 2.9 us to build, a Struct 0.12.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal

from msgspec import Struct

from treadle.core import defaults
from treadle.core.argument_names import Spelled


class State(StrEnum):
    """The six stored states. Scheduled, retrying, blocked and dead are views of them, not states."""

    WAITING = "waiting"  # for other jobs, or (a promise) for somebody to settle it
    READY = "ready"  # in line, or to join it when due_at comes
    RUNNING = "running"  # leased to a worker until due_at
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    final: bool  # succeeded, failed or cancelled


FINAL: Final = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})
for _state in State:
    _state.final = _state in FINAL  # a fact, not a property: it is asked for several times a job
    # On CPython 3.11 a member is found by a property in Python: 0.2 us each time. This is what 3.12 does by itself.
    type.__setattr__(State, _state.name, _state)

Pairs = tuple[tuple[str, str], ...]

# The memo entry with the nonce of the last act: an outcome that is settled from outside, by a person.
ACT: Final = "treadle:act"

# Why a job failed ...
ERROR, ABORTED, LOST, EXPIRED, CHILDREN = "error", "aborted", "lost", "expired", "children"
ARGUMENTS: Final = "arguments"
# ... and why it was cancelled.
ASKED, UPSTREAM, SUPERSEDED = "asked", "upstream", "superseded"
# ... and the first words of why a worker that had claimed it gave it back; then the worker's name.
DECLINED: Final = "declined by "
# ... and of why a job is back in line whose lease ran out; then the name of the worker that held it. It stays until the
# job is settled, so the worker that claims it next knows.
LOST_BY: Final = "lost by "


class NewJob(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A job as it is asked for. Stored once and never changed; what changes is in `Record`.

    Everything is in seconds from the enqueue, by the storage's clock.
    """

    id: str
    task: str = ""  # "" is a promise: nobody runs it, somebody settles it
    payload: str = "[]"  # the codec's text; storages never look inside
    queue: str = defaults.QUEUE
    priority: int = 0  # higher first
    delay: float = 0.0  # s until it may be claimed
    key: str | None = None  # one unfinished job per key (already qualified by the engine)
    key_conflict: Literal["keep", "raise", "replace"] = "keep"
    key_window: float | None = None  # s after creation during which an ended job holds its key too
    key_until: Literal["ended", "started"] = "ended"
    after: tuple[str, ...] = ()  # jobs it waits for
    need: int | None = None  # endings needed of those; None: all of them
    slack: int | None = 0  # failures tolerated; None: any number, and a failure counts as an ending
    wait_timeout: float | None = None  # s it waits at most; given, `after` may name ids nobody knows yet
    limits: tuple[tuple[str, int], ...] = ()  # (name or name:partition, cost)
    lane: str | None = None  # jobs of different lanes take turns
    stride: float = 1.0  # how far apart the jobs of its lane stand: 1 / the lane's weight
    aging: float = 0.0  # s of waiting that are worth one step of priority; 0: priority is absolute
    keep: float = defaults.KEEP  # s the row stays once ended
    keep_failed: float = defaults.KEEP_FAILED
    deadline: float | None = None  # s by which it must have ended
    retry: str | None = None  # policy of this one job as JSON text; the engine's to read
    lease: float | None = None  # s; overrides the worker's
    labels: tuple[str, ...] = ()
    headers: Pairs = ()
    root: str | None = None  # the workflow's first job; None: it is its own
    parent: str | None = None
    ran: bool = False  # the function has run (or there is none): only the ending is left
    reach: tuple[str, ...] = ()  # the queues of the rows it may concern, see `treadle.storage.contract`; (): any
    nonce: str | None = None  # of the call that chose the id: a row of this id must have the same task and payload


class Record(Struct, frozen=True, gc=False, kw_only=True):
    """A job as it is stored: what was asked, and what has become of it. Instants are seconds since 1970."""

    job: NewJob
    version: int  # rises at every claim and settle; (id, version) is the lease and the fence
    state: State
    after: tuple[str, ...] = ()  # as asked, each id that another row answered replaced by the id of that row
    pending: int = 0  # endings still needed
    slack: int | None = 0  # failures still tolerated
    ran: bool = False
    place: float | None = None  # its number in line; None: not in line
    joined_at: float | None = None  # the turn it keeps when it leaves the line and comes back
    due_at: float | None = None  # when the storage must act next: run time, lease end, wait or deadline over
    deadline_at: float | None = None
    attempt: int = 0  # judged tries
    lost: int = 0  # leases that ran out
    worker: str | None = None  # the ticket of its holder, or of its last one
    parked: str | None = None  # the limit it stepped aside for; while place is None it stands aside
    result: str | None = None  # its own value
    value: str | None = None  # its workflow's value, once folded
    error: str | None = None
    reason: str | None = None
    memo: Pairs = ()  # steps remembered, by name
    note: str | None = None  # progress, as the engine writes it
    round: int = 0  # how often it was reopened
    created_at: float = 0.0
    started_at: float | None = None  # its last claim of this round
    updated_at: float = 0.0
    ended_at: float | None = None
    expires_at: float | None = None  # when its row may be pruned; never within its key_window

    @property
    def id(self) -> str:
        return self.job.id


class Outcome(Struct, frozen=True, gc=False, kw_only=True):
    """What became of a job: an assignment, not a procedure. The engine has decided all of it.

    READY        come back after `delay`; with 0 it keeps its turn. On an ended job: reopen it.
    WAITING      for `after` (need, slack as in NewJob), then `ran` says whether to call the function again.
                 With a `delay` it comes back in line after that long all the same.
    final states the ending; on a job that has ended in that state already, only `keep` is assigned.

    An outcome whose memo has an `ACT` entry is an act: it raises the version also where it assigns only `keep`, and is
    repeated by an outcome with the same entry alone, so that two people who act at once are told apart.
    """

    id: str
    version: int
    state: State
    delay: float = 0.0
    attempt: int = 0
    result: str | None = None
    value: str | None = None
    error: str | None = None
    reason: str | None = None
    memo: Pairs = ()  # merged by name; names not given stay
    note: str | None = None  # None: stays
    then: tuple[NewJob, ...] = ()  # stored if and only if this outcome is applied
    after: tuple[str, ...] = ()
    need: int | None = None
    slack: int | None = None
    ran: bool = False
    keep: float | None = None  # s after the ending; None: as the job asked
    reach: tuple[str, ...] = ()  # the queues its job and the jobs of `after` must be in; (): any


class Settled(Struct, frozen=True, gc=False):
    """What became of an outcome: "applied"; "stale", the job has moved on; "refused", with the reason.

    again  refused for the moment only, by a row that somebody else holds: the same outcome is to be settled once more
    """

    status: Literal["applied", "stale", "refused"]
    reason: str | None = None
    again: bool = False


APPLIED: Final = Settled("applied")


class Claim(Struct, frozen=True, gc=False, kw_only=True):
    """What a worker asks for.

    worker  a ticket "name#n": asked again under the same ticket, the same jobs are answered
    queues  (name, share): each queue's share first, in this order, then what is left to take, as asked
    tasks   {name: (room, lease)}: only these, at most `room` of each (None: no bound); lease None: `lease`.
            None: any task.
    ids     not empty: these jobs and no others
    holds   ids the worker still runs; never handed out again to it
    reach   with `ids`: the queues these must be in; (): any
    hand    (address, s): where nothing is found, a job that comes within so many seconds may be handed to this address,
            see `treadle.storage.contract.Handing`; other storages do not look at it
    """

    worker: str
    queues: tuple[tuple[str, int], ...] = ((defaults.QUEUE, 1),)
    tasks: dict[str, tuple[int | None, float | None]] | None = None
    limit: int = 1
    lease: float = defaults.LEASE
    ids: tuple[str, ...] = ()
    holds: tuple[str, ...] = ()
    hand: tuple[str, float] | None = None
    reach: tuple[str, ...] = ()


class Claimed(Struct, frozen=True, gc=False):
    """The jobs taken, in line order, and in how many seconds the next one may be due (None: none known)."""

    records: tuple[Record, ...] = ()
    next_in: float | None = None


class Hold(Struct, frozen=True, gc=False):
    """A job somebody runs: its id, and the version his claim gave it. Memo is merged, note replaced.

    reach  the queues the job must be in, or it counts as lost; (): any
    """

    id: str
    version: int
    memo: Pairs = ()
    note: str | None = None
    reach: tuple[str, ...] = ()


class Held(Struct, frozen=True, gc=False):
    """What became of the holds of a heartbeat, by id; of those it does not name, everything is stored.

    lost     held no longer: another worker claimed the job, or it has ended
    unsaved  still held, but the storage wrote neither lease, memo nor note, because another transaction has the row;
             repeat the hold
    """

    lost: frozenset[str] = frozenset()
    unsaved: frozenset[str] = frozenset()


class Presence(Struct, frozen=True, gc=False, kw_only=True):
    """A worker as it describes itself at each heartbeat. `gone`: it says good-bye."""

    worker: str  # the name, without "#n"
    host: str = ""
    pid: int = 0
    queues: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()  # those it runs
    slots: int = 0
    running: int = 0
    uptime: float = 0.0  # s
    ttl: float = 90.0  # s after which silence means it is gone
    gone: bool = False
    paused: float = 0.0  # s for which its throttle claims nothing, from this heartbeat on
    gathering: tuple[tuple[str, float, float], ...] = ()  # batch task, s since its first item came, s until its call
    age: float = 0.0  # s since this heartbeat, as the storage answers it; a worker sends 0


class Limit(Spelled, frozen=True, gc=False):
    """A rule for the jobs that name it, or `name:partition` of it. A queue obeys "queue:<its name>" and "queue".

    slots   how many may run at once, per partition; 0 is a pause; None: any number
    rate    how many may start in any `per` seconds
    how     "window": exact, over every rolling window; "bucket": `burst` at once, refilled at rate / per
    hold    "running": the slot is free when the run ends; "ended": only when the job has ended
    With neither slots nor rate the rule is removed.
    """

    name: str
    slots: int | None = None
    rate: int | None = None
    per: float = 1.0
    how: Literal["window", "bucket"] = "window"
    burst: int | None = None
    hold: Literal["running", "ended"] = "running"


Why = Literal["paused", "held"]
"""An operator paused the limit; or a job deferred with it, and it rests for a while."""


class Declare(Struct, frozen=True, gc=False, tag="declare"):
    """The rule that code states for a limit. It acts while no operator has set one."""

    rule: Limit


class Pause(Struct, frozen=True, gc=False, tag="pause"):
    """A reason for which a limit lets no job start. It does not end by itself: `until` is when its author means to."""

    name: str
    why: Why = "paused"
    until: float | None = None


class Resume(Struct, frozen=True, gc=False, tag="resume"):
    """Take one reason away. With `until`, only a pause meant to end by then: a later one stays. "paused" also removes a
    rule of 0 slots."""

    name: str
    why: Why = "paused"
    until: float | None = None


LimitChange = Limit | Declare | Pause | Resume
"""One change of the limits. A `Limit` is the operator's rule; with neither slots nor rate it removes the rule, and the
declared one with it."""


class LimitFacts(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """All that is stored of one limit. The facts do not depend on each other: each change touches its own."""

    name: str
    set: Limit | None = None  # by an operator
    declared: Limit | None = None  # by code
    pauses: tuple[Pause, ...] = ()  # at most one for each reason


class Query(Struct, frozen=True, gc=False, kw_only=True):
    """Which jobs to look at. Every field given narrows; `cursor` goes on where a page ended.

    order     newest | oldest (by creation, id) | ended (latest ending first) | line (queue, then line order)
    ahead_of  only those in line before this job, in its queue
    before    created before this moment
    count     also count all that match
    """

    ids: tuple[str, ...] = ()
    state: tuple[State, ...] = ()
    task: str | None = None
    queue: str | None = None
    root: str | None = None
    parent: str | None = None
    label: str | None = None
    before: float | None = None
    cursor: str | None = None
    order: Literal["newest", "oldest", "ended", "line"] = "newest"
    ahead_of: str | None = None
    limit: int = 50
    count: bool = False


class Page(Struct, frozen=True, gc=False):
    records: tuple[Record, ...] = ()
    cursor: str | None = None  # None: this was the last page
    total: int | None = None


class Count(Struct, frozen=True, gc=False, kw_only=True):
    """How many jobs of one queue and task are in one state; of the ready ones how many stand in line or aside."""

    queue: str
    task: str
    state: State
    jobs: int
    in_line: int = 0
    parked: int = 0
    oldest: float | None = None  # s the first in line has stood there


class LimitUse(Struct, frozen=True, gc=False, kw_only=True):
    """One limit, or one partition of it that is in use. While it is paused its rule has 0 slots."""

    key: str
    rule: Limit
    used: int = 0  # slots taken, in cost
    parked: int = 0  # jobs standing aside for it
    starts: int = 0  # starts that its rate counts now, in cost
    next_start: float | None = None  # when a rate that is used up lets the next job start; None: it does now
    pauses: tuple[Pause, ...] = ()
    behind: Limit | None = None  # the rule that acts again when nothing pauses it any more
    declared: bool = False  # code states this rule, and no operator has set another


class Stats(Struct, frozen=True, gc=False, kw_only=True):
    counts: tuple[Count, ...] = ()
    workers: tuple[Presence, ...] = ()
    limits: tuple[LimitUse, ...] = ()
