"""The JSON of the overview. Durations are in seconds, rates in jobs per second."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from treadle.core.limit_model import LimitUse, WhenFull, Why
from treadle.core.model import Presence

Level = Literal["error", "warning", "info"]
Counted = Literal["queued", "running", "scheduled", "blocked", "waiting", "failed"]


class PauseView(Struct, frozen=True):
    """Why a queue starts no job: an operator paused it, or a job asked for a rest (held). until: null is for good."""

    why: Why
    until: float | None = None


class QueueOverview(Struct, frozen=True, kw_only=True):
    """One queue. Each count is exact unless the overview's `capped` names it.

    queued         jobs that are due and wait for a worker; `queued_capped`: there are at least as many
    oldest         seconds since the first queued job was queued; null: none is queued
    scheduled      ready jobs that are not due yet
    blocked        ready jobs that a limit blocks
    waiting        jobs that wait for other jobs
    paused_by      the limit that lets no job start: the queue's own, or `queue`, which holds for all queues; null: none
    max_waiting    how many queued, scheduled and blocked jobs it may have; null: any number
    when_full      what becomes of a call that enqueues more
    filled         how many of these jobs it has, if it has a bound. Exact, also beyond 10,000, unless `filled_capped`:
                   there are at least as many
    full           whether it has as many as it may have
    unplaced       ready jobs that no running worker can ever run, because of labels or resources; up to 30 s old
    workers        workers that serve the queue
    ended_rate     jobs that succeeded or failed per second in the last full minute; null: no metrics
    spark          jobs that succeeded or failed in each of the last 30 periods of 10 s, the oldest first
    """

    name: str
    paused: bool = False
    paused_by: str | None = None
    pauses: Sequence[PauseView] = ()
    queued: int = 0
    queued_capped: bool = False
    oldest: float | None = None
    running: int = 0
    scheduled: int = 0
    blocked: int = 0
    waiting: int = 0
    failed: int = 0
    max_waiting: int | None = None
    when_full: WhenFull | None = None
    filled: int | None = None
    filled_capped: bool = False
    full: bool = False
    unplaced: int = 0
    workers: int = 0
    ended_rate: float | None = None
    spark: Sequence[float] = ()


class Totals(Struct, frozen=True, kw_only=True):
    """The sums over all visible queues, and the slots of all visible workers.

    capped  the counts that stopped at a bound: there are at least as many
    """

    queued: int = 0
    running: int = 0
    scheduled: int = 0
    blocked: int = 0
    waiting: int = 0
    failed: int = 0
    slots: int = 0
    capped: Sequence[Counted] = ()


class WorkerView(Presence, frozen=True, kw_only=True):
    """A worker as its last heartbeat described it. leader: whether it does the maintenance."""

    leader: bool = False


class Rates(Struct, frozen=True, kw_only=True):
    """Jobs per second in the last full minute, and seconds of runs and of waiting in the queue. null: no data."""

    succeeded: float | None = None
    failed: float | None = None
    retried: float | None = None
    run_p50: float | None = None
    run_p95: float | None = None
    wait_p50: float | None = None
    wait_p95: float | None = None


class Notice(Struct, frozen=True, kw_only=True):
    """Something that an operator should know.

    href  the page that shows more, relative to the dashboard
    """

    level: Level
    text: str
    advice: str
    href: str


class Overview(Struct, frozen=True, kw_only=True):
    """The present state of a storage, as far as the caller may see it.

    at       the storage's time of the look; it stays while the storage does not answer
    cost_ms  how long the look took
    every    seconds between two looks at present: at least 2, and 50 times as long as a look takes
    leader   the worker that does the maintenance; null: none, or one that the token may not see
    health   warnings and errors among the checks of `/v1/doctor`: those that the counts show, read every 30 s, and the
             others as of its last call; null: the token may not see them
    """

    at: float
    cost_ms: float
    every: float
    totals: Totals
    queues: Sequence[QueueOverview] = ()
    workers: Sequence[WorkerView] = ()
    limits: Sequence[LimitUse] = ()
    leader: str | None = None
    health: int | None = None
    rates: Rates = Rates()
    notices: Sequence[Notice] = ()
