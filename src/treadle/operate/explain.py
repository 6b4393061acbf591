"""Why is this job not running? Answered from its row and the statistics, in one sentence.

Without it a person would have to know the states, the limits and the workers by heart.
"""

from __future__ import annotations

from collections.abc import Mapping

from treadle.clock import moment
from treadle.model import Record, State, Stats
from treadle.promises import signal_name


def explain(row: Record, upstreams: Mapping[str, Record | None], ahead: int | None, stats: Stats, now: float) -> str:
    """One sentence. `upstreams` are the rows it waits for, `ahead` how many stand before it in line."""
    if row.state.final:
        return _ended(row)
    if row.state is State.RUNNING:
        left = (row.due_at or now) - now
        worker = (row.worker or "?").rpartition("#")[0] or row.worker
        return f"It runs at {worker} since {_at(row.started_at)}; its lease {_lasts(left)}."
    if row.state is State.WAITING:
        return _waiting(row, upstreams)
    if row.parked is not None and row.place is None:
        use = next((use for use in stats.limits if use.key == row.parked), None)
        rule = use.rule if use else None
        if rule is not None and rule.slots == 0:
            return f"The limit {row.parked!r} is paused (0 slots)."
        many = f", {use.used} in use, {use.parked} jobs stand aside" if use else ""
        allowed = " and ".join(
            text for text in (
                f"{rule.slots} slots" if rule and rule.slots is not None else "",
                f"{rule.rate} starts per {rule.per:g} s" if rule and rule.rate is not None else "",
            ) if text
        )  # fmt: skip
        return f"It stands aside until the limit {row.parked!r} has room ({allowed or 'its rule was removed'}{many})."
    if row.place is None:
        why = f"its try {row.attempt} failed and the next is due" if row.attempt else "it is due"
        return f"It is not in line yet: {why} at {_at(row.due_at)}, in {max(0.0, (row.due_at or now) - now):.1f} s."
    return _in_line(row, ahead, stats)


def _in_line(row: Record, ahead: int | None, stats: Stats) -> str:
    queue = row.job.queue
    for use in stats.limits:
        if use.key in (f"queue:{queue}", "queue") and use.rule.slots is not None and use.used >= use.rule.slots:
            if use.rule.slots == 0:
                return f"Its queue {queue!r} is paused."
            return f"Its queue {queue!r} runs {use.used} of {use.rule.slots} jobs at once already."
    serving = [worker for worker in stats.workers if queue in worker.queues]
    if not serving:
        return f"It is in line, and no worker serves its queue {queue!r}."
    # What workers say of themselves is a heartbeat old; the rows are not.
    runs = sum(count.jobs for count in stats.counts if count.queue == queue and count.state is State.RUNNING)
    able = [worker for worker in serving if row.job.task in worker.tasks]
    if not able:
        return (
            f"It is in line, and none of the {len(serving)} workers that serve {queue!r} has the task {row.job.task!r}."
        )
    serving = able
    free = sum(worker.slots for worker in serving) - max(runs, sum(worker.running for worker in serving))
    if ahead:
        workers = f"{len(serving)} workers serve it, {free} slots are free"
        return f"It is in line behind {ahead} jobs in queue {queue!r}; {workers}."
    if free <= 0:
        return f"It is next in line; all slots of the {len(serving)} workers that serve {queue!r} are taken."
    return f"It is next in line; a worker of {queue!r} will claim it in a moment."


def _waiting(row: Record, upstreams: Mapping[str, Record | None]) -> str:
    if not row.job.task:
        return "It is a promise: it waits for somebody to settle it."
    open_ = [id for id, up in upstreams.items() if up is None or not up.state.final]
    unknown = [id for id in open_ if upstreams[id] is None]
    signals = [(id, name) for id in open_ if (up := upstreams[id]) and (name := signal_name(up)) is not None]
    if signals and len(open_) == 1:
        return f"It waits for the signal {signals[0][1]!r}."
    named = ", ".join(open_[:3]) + (f" and {len(open_) - 3} more" if len(open_) > 3 else "")
    until = f", until {_at(row.due_at)} at most" if row.due_at is not None else ""
    strangers = f"; nobody knows {', '.join(unknown[:3])} yet" if unknown else ""
    done = "It has run and waits for its children" if row.ran else "It waits"
    return f"{done}: {row.pending} more endings are needed, of {named or 'jobs that count already'}{until}{strangers}."


def _ended(row: Record) -> str:
    last = (row.error or "").strip().splitlines()
    because = f": {last[-1]}" if last else ""
    reason = f" ({row.reason})" if row.reason else ""
    how = "was cancelled" if row.state is State.CANCELLED else str(row.state)
    return f"It {how}{reason} at {_at(row.ended_at)} after {row.attempt} tries{because}."


def _at(seconds: float | None) -> str:
    return "an unknown moment" if seconds is None else f"{moment(seconds):%Y-%m-%d %H:%M:%S} UTC"


def _lasts(left: float) -> str:
    return f"lasts {left:.0f} s more" if left >= 0 else f"ran out {-left:.0f} s ago, so it will soon be claimed again"
