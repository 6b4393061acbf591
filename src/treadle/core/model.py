"""The data model: frozen structs of strings, numbers and tuples, which the engine exchanges with storages.

The engine passes durations and storages return instants, because only the storage reads a clock. Every storage, the
HTTP interface and runners in other languages use the same fields.

They are Structs because a frozen dataclass of this width takes 2.9 us to build, a Struct 0.12 us.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal

import msgspec
from msgspec import Struct

from treadle.core import defaults
from treadle.core.errors import readable
from treadle.core.placement import Needs


class State(StrEnum):
    """The six stored states. Scheduled, retrying, blocked and dead are derived from them and not stored."""

    WAITING = "waiting"  # waits for other jobs, or (a promise) to be settled from outside
    READY = "ready"  # queued, blocked by a limit, or queued once due_at is reached
    RUNNING = "running"  # leased to a worker until due_at
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    final: bool  # succeeded, failed or cancelled


FINAL: Final = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})
for _state in State:
    _state.final = _state in FINAL  # set once, not a property: the engine reads it several times per job
    # On CPython 3.11, State.NAME goes through a property written in Python, 0.2 us each time; on 3.12 it is an
    # attribute.
    type.__setattr__(State, _state.name, _state)

Pairs = tuple[tuple[str, str], ...]

# Prefix of the names of checkpoints that are not steps of a function or the state of a schedule.
OURS: Final = "treadle:"
# Name of the checkpoint with the nonce of the last act: an outcome that an operator settles from outside.
ACT: Final = "treadle:act"
# Names of the checkpoints of a job that its function has restarted: the number of its round, and the arguments of this
# round. `NewJob.payload` keeps the first arguments, with which an enqueue of the same id is compared.
ROUND, ARGUMENTS_NOW = "treadle:round", "treadle:arguments"
# Prefix of the checkpoints that say how far a job has read each of its mailboxes; the name of the mailbox follows.
MAILBOX: Final = "treadle:mailbox:"
# Prefix of the checkpoints with the values that a function has published; the name follows.
PUBLISHED: Final = "treadle:published:"
# Prefix of the checkpoints that say how far a job has written each of its streams; the name of the stream follows.
STREAM: Final = "treadle:stream:"

# Name of the checkpoint of a lock's row that names its last turn.
LAST_TURN: Final = "treadle:turn"

# Name of the checkpoint with the version of the task that has taken the first step of a durable job.
BEGUN_WITH: Final = "treadle:version"

# Reasons why a job failed. `treadle.errors` has those with which it fails at once.
ERROR, ABORTED, LOST, EXPIRED, CHILDREN = "error", "aborted", "lost", "expired", "children"
# Reasons why a job was cancelled.
ASKED, UPSTREAM, SUPERSEDED = "asked", "upstream", "superseded"
SHED: Final = "shed"  # cancelled by an enqueue, because its queue was full
# Reason of a ready job that is paused: it is not due for 100 years.
PAUSED: Final = "paused"
# Reason of a job that its worker released without running it; the worker's name follows.
DECLINED: Final = "declined by "
# Reason of a job that its last run deferred, because it may not take a lock; which one and why follow.
KEPT_FROM: Final = "kept from "
# Reason of a job whose lease expired; the name of the worker that held it follows. It stays until the job is settled,
# so that the next worker can read it.
LOST_BY: Final = "lost by "
# Reason of a job that its last run suspended to sleep; the key of the sleep follows. It stays until the job is settled
# or its lease expires, so that the next run reads that the time of this sleep is over.
ASLEEP: Final = "asleep in "


class NewJob(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A job as it is requested. Stored once and never changed; the fields that change are in `Record`.

    Durations are in seconds, counted from the enqueue by the storage's clock.
    """

    id: str
    task: str = ""  # "" is a promise: no worker runs it, it is settled from outside
    payload: str = "[]"  # text written by the codec; storages never parse it
    queue: str = defaults.QUEUE
    priority: int = 0  # higher first
    delay: float = 0.0  # s until it may be claimed
    key: str | None = None  # one unfinished job per key; the engine has added the task or scope already
    key_conflict: Literal["keep", "raise", "replace"] = "keep"
    key_window: float | None = None  # s after creation during which the key stays taken, also once the job has ended
    key_until: Literal["ended", "started"] = "ended"
    after: tuple[str, ...] = ()  # ids of the jobs it waits for
    required: int | None = None  # how many of their endings it needs; None: all
    failures_allowed: int | None = 0  # failures tolerated; None: any number, and a failure counts as an ending
    wait_timeout: float | None = None  # s it waits at most; if set, `after` may name ids that are not stored yet
    limits: tuple[tuple[str, int], ...] = ()  # (name or name:partition, cost)
    lane: str | None = None  # jobs of different lanes take turns
    stride: float = 1.0  # distance between the queue positions of its lane: 1 / the lane's weight
    aging: float = 0.0  # s of waiting that count as one step of priority; 0: priority is absolute
    keep: float = defaults.KEEP  # s the row is kept after the ending
    keep_failed: float = defaults.KEEP_FAILED
    deadline: float | None = None  # s within which it must end
    retry: str | None = None  # retry policy of this job as JSON text; only the engine reads it
    lease: float | None = None  # s; overrides the worker's
    labels: tuple[str, ...] = ()
    headers: Pairs = ()
    root: str | None = None  # the workflow's first job; None: this job
    parent: str | None = None
    function_done: bool = False  # the function has run (or there is none), and only the ending is left
    reach: tuple[str, ...] = ()  # queues whose rows it may concern, see `treadle.storage.contract`; (): any
    # Seconds since 1970 by the storage's clock, which count instead of `delay` and `deadline`. A storage or a server
    # that does not know these fields reads `delay` and `deadline`: the same times by the clock of the enqueuing
    # process.
    run_at: float | None = None
    deadline_at: float | None = None
    nonce: str | None = None  # names the call that chose the id; for other calls task and payload must be equal


class Record(Struct, frozen=True, gc=False, kw_only=True):
    """A stored job: the request and its current state. Instants are seconds since 1970."""

    job: NewJob
    version: int  # rises at every claim and settle; (id, version) is the lease and the fencing token
    state: State
    after: tuple[str, ...] = ()  # as requested; an id for which another row was returned is replaced by that row's id
    pending: int = 0  # endings it still needs
    failures_allowed: int | None = 0  # failures it still tolerates
    function_done: bool = False
    queue_position: float | None = None  # its position in the queue, an instant; None: not queued
    return_position: float | None = None  # the position at which it is queued again after it left the queue
    due_at: float | None = None  # when the storage must act next: run time, end of the lease, wait_timeout or deadline
    deadline_at: float | None = None
    attempt: int = 0  # runs that returned or failed
    lost: int = 0  # leases that expired
    worker: str | None = None  # claim id of the current worker, or of the last one
    blocked_on: str | None = None  # the limit that blocks it, or that blocked it until it was queued again
    result: str | None = None  # the job's own result
    value: str | None = None  # the value of its workflow, once all children have ended
    error: str | None = None
    reason: str | None = None
    checkpoints: Pairs = ()  # stored step results, by name
    note: str | None = None  # progress, as text that the engine writes
    reopenings: int = 0  # how often it was reopened
    created_at: float = 0.0
    started_at: float | None = None  # last claim since it was stored or reopened
    updated_at: float = 0.0
    ended_at: float | None = None
    expires_at: float | None = None  # when its row may be pruned; never before its key_window is over

    @property
    def id(self) -> str:
        return self.job.id

    @property
    def progress(self) -> float | None:
        """The progress that its run reported last, 0 to 1; None: it reported none."""
        return progress_of(self.note)[0]

    @property
    def progress_text(self) -> str | None:
        """The text that its run reported with it."""
        return progress_of(self.note)[1]


def progress_of(note: str | None) -> tuple[float | None, str | None]:
    """The progress in a note, and its text. A note of another form has only a text."""
    if note is None or (plain := readable(note)) is not note:
        return None, None if note is None else plain
    try:
        progress = msgspec.json.decode(note)
        return float(progress["progress"]) if "progress" in progress else None, str(progress["text"])
    except Exception:  # another program may have written it
        return None, note


class Outcome(Struct, frozen=True, gc=False, kw_only=True):
    """The new values of a job, all decided by the engine. The storage assigns them and runs no procedure.

    READY        run again after `delay` s; with 0 it returns to its queue position. On an ended job: reopen it.
    WAITING      wait for `after` (`required` and `failures_allowed` as in NewJob); `function_done` says whether the
                 function has run or is called again afterwards. With a `delay` the job is queued after that time in
                 any case.
    final states the ending; on a job that has already ended in that state, only `keep` is assigned. If it names jobs in
                 `after`, for which its job has waited, it is stale if one of them is open or has succeeded: its worker
                 has read the failure of each, and one was reopened since.

    An outcome with an `ACT` checkpoint is an act: it raises the version even if it assigns only `keep`, and only an
    outcome with the same `ACT` counts as its repetition. This distinguishes two operators who act at the same time.

    An outcome with a `ROUND` checkpoint restarts the job, or reopens it from one of its steps: the storage first
    deletes the job's checkpoints, except those whose name begins with `OURS`.

    `spent` has the real costs of the run that ends, by the names in `NewJob.limits`. Rates count them in place of the
    costs that the claim has reserved. Other names have no effect.
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
    checkpoints: Pairs = ()  # merged by name; other checkpoints stay, unless there is a `ROUND`
    note: str | None = None  # None: unchanged
    followups: tuple[NewJob, ...] = ()  # follow-up jobs, stored if and only if this outcome is applied
    after: tuple[str, ...] = ()
    required: int | None = None
    failures_allowed: int | None = None
    function_done: bool = False
    keep: float | None = None  # s the row is kept after the ending; None: as the job says
    reach: tuple[str, ...] = ()  # the queues its job and the jobs of `after` must be in; (): any
    spent: tuple[tuple[str, int], ...] = ()  # (name of a limit, real cost); a limit that is not named keeps its cost


class Settled(Struct, frozen=True, gc=False):
    """The result of settling an outcome: "applied"; "stale" if the version has changed; "refused", with the reason.

    again  refused only because another transaction locks the row: settle the same outcome once more
    """

    status: Literal["applied", "stale", "refused"]
    reason: str | None = None
    again: bool = False


APPLIED: Final = Settled("applied")


class Claim(Struct, frozen=True, gc=False, kw_only=True):
    """The request of a worker for jobs.

    worker    a claim id "name#n"; a repeated claim with the same claim id returns the same jobs
    queues    (name, share): takes up to `share` jobs of each queue, in this order; then, in this order again, up to
    `limit`
              jobs in all
    tasks     {name: (room, lease)}: only these tasks, at most `room` jobs of each (None: no bound); lease None:
    `lease`.
              None: any task.
    limit     jobs at most, in all
    lease     seconds
    ids       if not empty: only these jobs, whatever `queues` says
    running   ids of the jobs that the worker still runs; they are not claimed for it again
    hand_off  (mailbox address, seconds): if no job is found, an enqueue within this time may claim its job for the
              worker and notify this mailbox, see `treadle.storage.optional_parts.HandOffs`; other storages ignore it
    reach     with `ids`: the queues these must be in; (): any
    """

    worker: str
    queues: tuple[tuple[str, int], ...] = ((defaults.QUEUE, 1),)
    tasks: dict[str, tuple[int | None, float | None]] | None = None
    limit: int = 1
    lease: float = defaults.LEASE
    ids: tuple[str, ...] = ()
    running: tuple[str, ...] = ()
    hand_off: tuple[str, float] | None = None
    reach: tuple[str, ...] = ()


class Claimed(Struct, frozen=True, gc=False):
    """The claimed jobs in queue order, and the seconds until the next job may be due (None: none known)."""

    records: tuple[Record, ...] = ()
    next_in: float | None = None


class LeaseRenewal(Struct, frozen=True, gc=False):
    """A running job whose lease is renewed: its id, and the version that its claim returned. Checkpoints are merged by
    name; `note` replaces the stored one unless it is None.

    reach  the queues the job must be in, otherwise it counts as lost; (): any
    """

    id: str
    version: int
    checkpoints: Pairs = ()
    note: str | None = None
    reach: tuple[str, ...] = ()


class HeartbeatResult(Struct, frozen=True, gc=False):
    """The ids of a heartbeat's renewals that were not stored in full. All other renewals were.

    lost     no longer held: another worker claimed the job, or it has ended
    unsaved  still held, but lease, checkpoints and note were not written, because another transaction locks the row;
             repeat the renewal
    """

    lost: frozenset[str] = frozenset()
    unsaved: frozenset[str] = frozenset()


class Presence(Struct, frozen=True, gc=False, kw_only=True):
    """A worker as it describes itself at each heartbeat. `gone`: it has stopped, and is listed no longer."""

    worker: str  # the name, without "#n"
    host: str = ""
    pid: int = 0
    queues: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()  # tasks it runs
    slots: int = 0
    running: int = 0
    uptime: float = 0.0  # s
    ttl: float = 90.0  # s without a heartbeat after which it counts as gone
    gone: bool = False
    paused: float = 0.0  # s from this heartbeat on during which its throttle claims nothing
    gathering: tuple[tuple[str, float, float], ...] = ()  # (batch task, s since its first item, s until its call)
    draining: str = ""  # why its process is replaced: it claims no more, and ends its running jobs
    age: float = 0.0  # s since this heartbeat, set by the storage; a worker sends 0
    versions: tuple[str, ...] = ()  # the signature version of each of `tasks`; (): it stores none
    labels: tuple[tuple[str, str], ...] = ()  # (name, value), "" for a label without one
    resources: tuple[tuple[str, int, int], ...] = ()  # (name, what it has, what its running jobs use)
    needs: tuple[Needs, ...] = ()  # needs of the tasks in its code, also of tasks that it cannot run
    reserved: str = ""  # the task for whose next job it keeps resources free
