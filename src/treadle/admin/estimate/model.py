"""The values of an estimate: what the calls return and the HTTP API sends. Instants are seconds since 1970."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

WIDER: Final = 2.0  # virtual runs agree more than real ones: of the starts in `bench eta` 79 % lay in their range


class Range(Struct, frozen=True):
    """When something happens: in half of the virtual runs by `median`.

    low, high  twice as far from the median as the bounds within which nine of ten virtual runs are, and not before now.
               Of 98 jobs in the fleets of `bench eta`, 89 % started in between
    """

    low: float
    median: float
    high: float


class Change(Struct, frozen=True, kw_only=True):
    """The effect of one change.

    what     the change in words, such as "2 more workers with 20 slots each"
    when     when the job then starts, or the queue is empty; None: not within the horizon
    command  the command that makes the change, if one does
    """

    what: str
    when: Range | None = None
    command: str | None = None


class Estimate(Struct, frozen=True, kw_only=True):
    """When a job starts and ends, estimated from its storage.

    id, at       the job, and the time of the estimate
    start        when its next run begins; None: it has begun or ended, or does not begin by itself
    end          when that run ends
    explanation  the sentence of `explain`
    ahead        jobs that were simulated before it
    left_out     jobs ahead that were not simulated; their number scales the estimate
    simulations  how many virtual runs of the queue the figures come from
    changes      what would let it start earlier, the most effective first
    assumptions  what the estimate takes for granted, as sentences
    """

    id: str
    at: float
    explanation: str
    start: Range | None = None
    end: Range | None = None
    ahead: int = 0
    left_out: int = 0
    simulations: int = 0
    changes: tuple[Change, ...] = ()
    assumptions: tuple[str, ...] = ()


class QueuePlan(Struct, frozen=True, kw_only=True):
    """The near future of a queue if nothing changes.

    queue, at     the queue, and the time of the plan
    queued, running, blocked, scheduled  its jobs now; numbers of 10,000 may be more
    workers, slots  those that can run one of its tasks, without silent, paused and replaced workers
    arriving      jobs a second that enter it: the median of the last minutes
    leaving       jobs a second that start while jobs are queued, at most
    utilisation   share of the slots that its arriving jobs keep busy, or of the resource of which they use the largest
                  share; above 1 it falls behind
    empty         when no job of it is queued or blocked; None: not by itself
    bottleneck    what its jobs wait for most, as words
    """

    queue: str
    at: float
    queued: int = 0
    running: int = 0
    blocked: int = 0
    scheduled: int = 0
    workers: int = 0
    slots: int = 0
    arriving: float = 0.0
    leaving: float | None = None
    utilisation: float | None = None
    empty: Range | None = None
    bottleneck: str | None = None
    left_out: int = 0
    simulations: int = 0
    changes: tuple[Change, ...] = ()
    assumptions: tuple[str, ...] = ()


def range_of(moments: list[float], now: float) -> Range:
    """The range of these moments; there is at least one. None of them is before `now`."""
    ordered = sorted(moments)
    last = len(ordered) - 1
    low, median, high = (
        ordered[round(last * 0.05)],
        ordered[last // 2] / 2 + ordered[(last + 1) // 2] / 2,
        ordered[round(last * 0.95)],
    )
    return Range(max(now, median - WIDER * (median - low)), median, median + WIDER * (high - median))
