"""Why is this job not running? Answered from its row and the statistics, in one sentence.

What workers report of themselves is as old as their last heartbeat; the sentence says so where it matters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from treadle.core import ids
from treadle.core.clock import moment_text
from treadle.core.model import DECLINED, Limit, LimitUse, Presence, Record, State, Stats
from treadle.errors import error_line
from treadle.storage.row_rules import costs
from treadle.workflow.signals import signal_name

_FULL = "all slots of the"
NEAR = 0.25  # s by which an item may have been claimed before the batch that it opens


def explain(
    row: Record,
    upstreams: Mapping[str, Record | None],
    ahead: int | None,
    stats: Stats,
    now: float,
    parent: Record | None = None,
) -> str:
    """One sentence. `upstreams` are the rows it waits for, `ahead` how many stand before it in line, `parent` is the
    running job whose function enqueued it."""
    if row.state.final:
        return _ended(row)
    if row.state is State.RUNNING:
        return _running(row, stats, now)
    if row.state is State.WAITING:
        return _waiting(row, upstreams)
    if row.parked is not None and row.place is None:
        return _by_parent(row.parked, row, stats, parent) or _blocked(row.parked, stats, now)
    if row.place is None:
        why = f"its try {row.attempt} failed and the next is due" if row.attempt else "it is due"
        if (worker := declined_by(row)) is not None:
            why = f"worker {worker!r} declined it (accept=), and it is offered again"
        return f"It is not in line yet: {why} at {_at(row.due_at)}, in {max(0.0, (row.due_at or now) - now):.1f} s."
    of_queue = _by_parent(f"queue:{row.job.queue}", row, stats, parent) or _by_parent("queue", row, stats, parent)
    found = of_queue or _queue_blocks(row.job.queue, ahead, stats, now) or _in_line(row, ahead, stats, now)
    if parent is not None and not of_queue and _FULL in found:
        return f"{found[:-1]}, one of them by {_parent(parent)}."
    return found


def limits_within(stats: Stats, reach: Sequence[str]) -> Stats:
    """These statistics for a caller with a right to these queues; (): to all. Of a limit that other queues use too it
    learns nothing, and of the rule for every queue the rule alone."""
    if not reach:
        return stats
    own = {f"queue:{queue}" for queue in reach}
    common = [replace(use, used=0, parked=0, starts=0, next_start=None) for use in stats.limits if use.key == "queue"]
    return replace(stats, limits=(*[use for use in stats.limits if use.key in own], *common))


def made_by(rows: Sequence[Record], id: str) -> Record | None:
    """Which of these runs made this id."""
    stem = ids.stem(id)
    return next((row for row in rows if ids.derived(row.job.id, row.version) == stem), None) if stem else None


def _by_parent(key: str, row: Record, stats: Stats, parent: Record | None) -> str | None:
    """A limit whose slots are taken, one of them by the job's own parent; None: it is not so."""
    use = next((use for use in stats.limits if use.key == key), None)
    if parent is None or use is None or not use.rule.slots or key not in dict(costs(parent.job)):
        return None
    if use.used + dict(costs(row.job)).get(key, 1) <= use.rule.slots:
        return None
    return f"The limit {key!r} has {use.used} of {use.rule.slots} slots in use, one of them by {_parent(parent)}."


def _parent(parent: Record) -> str:
    return (
        f"its own parent, {parent.job.task} {parent.job.id}: if that run waits for it, neither goes on (wait by "
        "`after=`, which takes no slot, or give more slots)"
    )


def declined_by(row: Record) -> str | None:
    """The worker whose `accept=` declined the job last, if no run has come since."""
    reason = row.reason or ""
    return reason.removeprefix(DECLINED) if reason.startswith(DECLINED) else None


# --- it runs


def _running(row: Record, stats: Stats, now: float) -> str:
    left = (row.due_at or now) - now
    name = (row.worker or "?").rpartition("#")[0] or row.worker
    worker = next((each for each in stats.workers if each.worker == name), None)
    if worker is not None and (ends := _gathered(row, worker, now)) is not None:
        return (
            f"Worker {name!r} gathers it with other jobs of {row.job.task!r} for one call, which begins when the batch "
            f"is full, or at {_at(ends)}; its lease {_lasts(left)}."
        )
    return f"It runs at {name} since {_at(row.started_at)}; its lease {_lasts(left)}."


def _gathered(row: Record, worker: Presence, now: float) -> float | None:
    """When the call begins for which its worker gathers it; None if it does not."""
    beat = now - worker.age
    for task, waited, left in worker.gathering:
        if task == row.job.task and row.started_at is not None and row.started_at >= beat - waited - NEAR:
            return beat + left if beat + left > now else None
    return None


# --- a limit blocks it


def _blocked(key: str, stats: Stats, now: float) -> str:
    use = next((use for use in stats.limits if use.key == key), None)
    if use is None:
        return (
            f"It stands aside until the limit {key!r} has room (its rule was removed, or this token does not show it)."
        )
    if use.rule.slots == 0:
        return _shut(f"The limit {key!r}", use)
    if use.rule.rate == 0:
        return _no_rate(f"The limit {key!r}", use)
    others = f"{use.parked} {'job stands' if use.parked == 1 else 'jobs stand'} aside"
    if use.next_start is not None:
        return f"It stands aside: {_rate_used_up(f'the rate of the limit {key!r}', use, now)}; {others}."
    facts = [f"{use.used} of {use.rule.slots} slots in use"] if use.rule.slots is not None else []
    facts += [f"{use.starts} of {_rate(use.rule)} used"] if use.rule.rate is not None else []
    return f"It stands aside until the limit {key!r} has room ({', '.join([*facts, others])})."


def _queue_blocks(queue: str, ahead: int | None, stats: Stats, now: float) -> str | None:
    """What the limit of its queue keeps from starting; None if it has room."""
    uses = {use.key: use for use in stats.limits}
    use = uses.get(f"queue:{queue}") or uses.get("queue")
    if use is None:
        return None
    if use.rule.slots == 0:
        return _shut(f"Its queue {queue!r}", use)
    if use.rule.rate == 0:
        return _no_rate(f"Its queue {queue!r}", use)
    if use.rule.slots is not None and use.used >= use.rule.slots:
        return f"Its queue {queue!r} runs {use.used} of {use.rule.slots} jobs at once already."
    if use.next_start is not None:
        behind = f"; {ahead} {'job is' if ahead == 1 else 'jobs are'} in line before it" if ahead else ""
        return f"It is in line, and {_rate_used_up(f'the rate of its queue {queue!r}', use, now)}{behind}."
    return None


def _rate_used_up(whose: str, use: LimitUse, now: float) -> str:
    opens = use.next_start or now
    return f"{whose} ({_rate(use.rule)}) is used up; the next start is possible at {_at(opens)}, in {_in(opens - now)}"


def _rate(rule: Limit) -> str:
    return f"{rule.rate:,} {'start' if rule.rate == 1 else 'starts'} per {rule.per:g} s"


def _shut(what: str, use: LimitUse) -> str:
    """Who keeps it from starting: a person, or a job that asked for a rest."""
    rest = next((pause for pause in use.pauses if pause.why == "held"), None)
    until = f"until {_at(rest.until)}" if rest is not None and rest.until is not None else "for a while"
    if rest is None or len(use.pauses) > 1:
        slots = "" if use.pauses else " (0 slots)"
        also = f"; it also rests {until}, because a job asked for it" if rest is not None else ""
        return f"{what} is paused{slots}: `{_resume(use.rule.name)}` opens it{also}."
    return f"{what} rests {until} because a job asked for it (`Defer(limit=...)`, as after a 429); it opens by itself."


def _no_rate(what: str, use: LimitUse) -> str:
    """No setting of ours has a rate of 0; other programs may store one."""
    return f"{what} lets no job start, as its rate is 0: `treadle limits set {use.rule.name}` gives it another one."


def _resume(name: str) -> str:
    kind, _, queue = name.partition(":")
    return f"treadle queues resume {queue}" if kind == "queue" and queue else f"treadle limits resume {name}"


# --- it is in line


def _in_line(row: Record, ahead: int | None, stats: Stats, now: float) -> str:
    queue = row.job.queue
    serving = [worker for worker in stats.workers if queue in worker.queues]
    if not serving:
        return f"It is in line, and no worker serves its queue {queue!r}."
    able = [worker for worker in serving if row.job.task in worker.tasks]
    if not able:
        several = f"none of the {len(serving)} workers" if len(serving) > 1 else "the only worker"
        has = "has" if len(serving) > 1 else "does not have"
        return f"It is in line, and {several} of {queue!r} {has} the task {row.job.task!r}."
    if (held_up := _held_up(able, now)) is not None:
        return f"It is in line, but {held_up}."
    able = [worker for worker in able if not _is_silent(worker) and not _pauses(worker)]
    # What workers say of themselves is a heartbeat old; the rows are not.
    runs = sum(count.jobs for count in stats.counts if count.queue == queue and count.state is State.RUNNING)
    free = sum(worker.slots for worker in able) - max(runs, sum(worker.running for worker in able))
    if ahead:
        if free <= 0:
            return f"It is in line behind {ahead} jobs in queue {queue!r}; {_FULL} {len(able)} workers are taken."
        workers = f"{len(able)} workers serve it, {max(0, free)} slots are free"
        return f"It is in line behind {ahead} jobs in queue {queue!r}; {workers}."
    if free <= 0:
        return f"It is next in line; {_FULL} {len(able)} workers that serve {queue!r} are taken."
    again = "" if (worker := declined_by(row)) is None else f" again, after worker {worker!r} declined it (accept=)"
    return f"It is next in line{again}; a worker of {queue!r} will claim it in a moment."


def _held_up(able: Sequence[Presence], now: float) -> str | None:
    """Why none of the workers that have the task claims it; None if one may."""
    heard = [worker for worker in able if not _is_silent(worker)]
    if not heard:
        last = min(able, key=lambda worker: worker.age)
        which = f"the {len(able)} workers" if len(able) > 1 else "the only worker"
        return (
            f"the last heartbeat of {which} that can run it came {_in(last.age)} ago ({last.worker}): where it was "
            f"killed or its machine stands still, start another one"
        )
    if all(_pauses(worker) for worker in heard):
        which = f"all {len(heard)} workers that can run it" if len(heard) > 1 else f"worker {heard[0].worker!r}"
        ends = min(now - worker.age + worker.paused for worker in heard)
        return f"{which} may claim nothing because of a throttle, until {_at(ends)}, in {_in(ends - now)}"
    return None


def _is_silent(worker: Presence) -> bool:
    """Whether a heartbeat is overdue: one comes every third of a lease, and `ttl` is three leases."""
    return worker.age > worker.ttl / 9 + 1


def _pauses(worker: Presence) -> bool:
    return worker.paused > worker.age


# --- it waits, or has ended


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
    because = f": {error_line(row.error)}" if row.error else ""
    reason = f" ({row.reason})" if row.reason else ""
    how = "was cancelled" if row.state is State.CANCELLED else str(row.state)
    tries = "1 try" if row.attempt == 1 else f"{row.attempt} tries"
    return f"It {how}{reason} at {_at(row.ended_at)} after {tries}{because}."


def _at(seconds: float | None) -> str:
    return "an unknown moment" if seconds is None else moment_text(seconds)


def _in(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 10 else f"{max(0.0, seconds):.1f} s"


def _lasts(left: float) -> str:
    return f"lasts {left:.0f} s more" if left >= 0 else f"ran out {-left:.0f} s ago, so it will soon be claimed again"
