"""The small decisions about one row that every storage must take alike. Pure.

Without it two storages would disagree on when a key is free, a row may go, or an outcome has been seen before.
"""

from __future__ import annotations

from typing import Final

from treadle import defaults
from treadle.model import NewJob, Outcome, Record, State

# Jobs that step aside in one step of a claim: nobody else writes meanwhile (memory 5 ms, SQLite 15 ms).
ASIDE_MOST: Final = 500


def rank(job: NewJob) -> int:
    """The priority it is sorted by. With ageing time decides, so all such jobs share one."""
    return 0 if job.aging else job.priority


def turn(job: NewJob, when: float) -> float:
    """Its number in line if it joins at `when`, lanes aside: ageing gives a head start per step of priority."""
    return when - job.aging * job.priority if job.aging else when


def needed(need: int | None, upstreams: int) -> int:
    """Endings it waits for: all of them unless it asks for fewer."""
    return upstreams if need is None else min(need, upstreams)


def costs(job: NewJob) -> tuple[tuple[str, int], ...]:
    """Every limit a job obeys: its queue's own, then those it names."""
    return (f"queue:{job.queue}", 1), *job.limits


def keeps_key(row: Record, now: float) -> bool:
    """Whether an ended job still holds its key: it does within `key_window` of its creation."""
    return row.job.key_window is not None and row.created_at + row.job.key_window > now


def expires_at(row: Record, state: State, ended_at: float, keep: float | None = None) -> float:
    """When an ended row may be pruned. A minute at least: a repeated settle and a late waiter must still find it.

    Not within its `key_window`: the row is what holds the key.
    """
    job = row.job
    if keep is None:
        keep = job.keep_failed if state is State.FAILED else job.keep
    return max(ended_at + max(keep, defaults.KEEP_LEAST), row.created_at + (job.key_window or 0.0))


def first_moment(*moments: float | None) -> float | None:
    """The earliest of those that are moments."""
    return min((at for at in moments if at is not None), default=None)


def repeats(out: Outcome, row: Record) -> bool:
    """Whether this very outcome has been applied and nothing has touched the row since.

    The version it names is one transition old, that transition was no claim, and all it assigned still stands.
    """
    if row.version != out.version + 1 or row.state is State.RUNNING:
        return False
    waited = out.state is State.WAITING and row.state is State.READY and row.ran is out.ran
    return (
        (row.state is out.state or waited)
        and row.attempt == out.attempt
        and row.result == out.result
        and row.value == out.value
        and row.error == out.error
        and row.reason == out.reason
    )
