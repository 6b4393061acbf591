"""Explains in one sentence why a job is not running, from its row and a glance at the storage.

The figures of workers are as old as their last heartbeat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from treadle.core import ids
from treadle.core.clock import moment_text
from treadle.core.limit_model import Limit, LimitUse
from treadle.core.model import DECLINED, Presence, Record, State
from treadle.core.query_model import Glance
from treadle.errors import error_line
from treadle.storage.row_rules import costs
from treadle.workflow.signals import signal_name

_FULL = "all slots of the"
MOST_AHEAD = 10_000  # queued jobs ahead of a job that are counted
NEAR = 0.25  # s by which a job may have been claimed before the batch that it opens


def explain(
    row: Record,
    upstreams: Mapping[str, Record | None],
    ahead: int | None,
    glance: Glance,
    now: float,
    parent: Record | None = None,
) -> str:
    """Explain the state of a job in one sentence.

    upstreams  the rows that it waits for
    ahead      the number of queued jobs before it, counted up to MOST_AHEAD
    parent     the running job whose function enqueued it
    """
    if row.state.final:
        return _ended(row)
    if row.state is State.RUNNING:
        return _running(row, glance, now)
    if row.state is State.WAITING:
        return _waiting(row, upstreams)
    if row.blocked_on is not None and row.queue_position is None:
        return _by_parent(row.blocked_on, row, glance, parent) or _blocked(row.blocked_on, glance, now)
    if row.queue_position is None:
        why = f"attempt {row.attempt} failed and the next one is due" if row.attempt else "it is due"
        if (worker := declined_by(row)) is not None:
            why = f"worker {worker!r} declined it (accept=), and it is offered again"
        return f"It is not queued yet: {why} at {_at(row.due_at)}, in {max(0.0, (row.due_at or now) - now):.1f} s."
    of_queue = _by_parent(f"queue:{row.job.queue}", row, glance, parent) or _by_parent("queue", row, glance, parent)
    found = of_queue or _queue_blocks(row.job.queue, ahead, glance, now) or _in_line(row, ahead, glance, now)
    if parent is not None and not of_queue and _FULL in found:
        return f"{found[:-1]}, one of them by {_parent(parent)}."
    return found


def limits_within(glance: Glance, reach: Sequence[str]) -> Glance:
    """The glance for a caller whose rights cover these queues; (): all queues.

    It contains the limits of these queues, and the rule for every queue without its use.
    """
    if not reach:
        return glance
    own = {f"queue:{queue}" for queue in reach}
    common = [replace(use, used=0, blocked=0, starts=0, next_start=None) for use in glance.limits if use.key == "queue"]
    return replace(glance, limits=(*[use for use in glance.limits if use.key in own], *common))


def made_by(rows: Sequence[Record], id: str) -> Record | None:
    """The run, of these, that enqueued the job with this id; None if there is none."""
    stem = ids.stem(id)
    return next((row for row in rows if ids.derived(row.job.id, row.version) == stem), None) if stem else None


def _by_parent(key: str, row: Record, glance: Glance, parent: Record | None) -> str | None:
    """The sentence for a full limit that the job's own parent holds a slot of; None if that is not the case."""
    use = next((use for use in glance.limits if use.key == key), None)
    if parent is None or use is None or not use.rule.slots or key not in dict(costs(parent.job)):
        return None
    if use.used + dict(costs(row.job)).get(key, 1) <= use.rule.slots:
        return None
    return f"The limit {key!r} has {use.used} of {use.rule.slots} slots in use, one of them by {_parent(parent)}."


def _parent(parent: Record) -> str:
    return (
        f"its own parent, {parent.job.task} {parent.job.id}: if that run waits for it, neither can continue (use "
        "`after=`, which takes no slot, or give the limit more slots)"
    )


def declined_by(row: Record) -> str | None:
    """The worker whose `accept=` declined the job, if it has not run since."""
    reason = row.reason or ""
    return reason.removeprefix(DECLINED) if reason.startswith(DECLINED) else None


# --- running


def _running(row: Record, glance: Glance, now: float) -> str:
    left = (row.due_at or now) - now
    name = (row.worker or "?").rpartition("#")[0] or row.worker
    worker = next((each for each in glance.workers if each.worker == name), None)
    if worker is not None and (ends := _gathered(row, worker, now)) is not None:
        return (
            f"Worker {name!r} gathers it with other jobs of {row.job.task!r} for one call, which begins when the batch "
            f"is full, or at {_at(ends)}; its lease {_lasts(left)}."
        )
    return f"It has been running on {name} since {_at(row.started_at)}; its lease {_lasts(left)}."


def _gathered(row: Record, worker: Presence, now: float) -> float | None:
    """When the worker will start the batch that the job is gathered for; None if the job is not being gathered."""
    beat = now - worker.age
    for task, waited, left in worker.gathering:
        if task == row.job.task and row.started_at is not None and row.started_at >= beat - waited - NEAR:
            return beat + left if beat + left > now else None
    return None


# --- blocked by a limit


def _blocked(key: str, glance: Glance, now: float) -> str:
    use = next((use for use in glance.limits if use.key == key), None)
    if use is None:
        return f"It is blocked until the limit {key!r} has room (its rule was removed, or this token does not show it)."
    if use.rule.slots == 0:
        return _shut(f"The limit {key!r}", use)
    if use.rule.rate == 0:
        return _no_rate(f"The limit {key!r}", use)
    others = f"{_count(use.blocked, 'job')} {'is' if use.blocked == 1 else 'are'} blocked"
    if use.next_start is not None:
        return f"It is blocked: {_rate_used_up(f'the rate of the limit {key!r}', use, now)}; {others}."
    facts = [f"{use.used} of {use.rule.slots} slots in use"] if use.rule.slots is not None else []
    facts += [f"{use.starts} of {_rate(use.rule)} used"] if use.rule.rate is not None else []
    return f"It is blocked until the limit {key!r} has room ({', '.join([*facts, others])})."


def _queue_blocks(queue: str, ahead: int | None, glance: Glance, now: float) -> str | None:
    """The sentence for a queue whose own limit is reached or paused; None if the limit has room."""
    uses = {use.key: use for use in glance.limits}
    use = uses.get(f"queue:{queue}") or uses.get("queue")
    if use is None:
        return None
    if use.rule.slots == 0:
        return _shut(f"Its queue {queue!r}", use)
    if use.rule.rate == 0:
        return _no_rate(f"Its queue {queue!r}", use)
    if use.rule.slots is not None and use.used >= use.rule.slots:
        return f"Its queue {queue!r} runs {use.used} of at most {use.rule.slots} jobs at once."
    if use.next_start is not None:
        behind = f"; {_jobs(ahead)} {'is' if ahead == 1 else 'are'} ahead of it" if ahead else ""
        return f"It is queued, and {_rate_used_up(f'the rate of its queue {queue!r}', use, now)}{behind}."
    return None


def _rate_used_up(whose: str, use: LimitUse, now: float) -> str:
    opens = use.next_start or now
    return f"{whose} ({_rate(use.rule)}) is used up; the next start is possible at {_at(opens)}, in {_in(opens - now)}"


def _rate(rule: Limit) -> str:
    return f"{_count(rule.rate or 0, 'start')} per {rule.per:g} s"


def _shut(what: str, use: LimitUse) -> str:
    """The sentence for a limit that is paused by an operator or held by a job."""
    rest = next((pause for pause in use.pauses if pause.why == "held"), None)
    until = f"until {_at(rest.until)}" if rest is not None and rest.until is not None else "for a while"
    if rest is None or len(use.pauses) > 1:
        slots = "" if use.pauses else " (0 slots)"
        also = f"; it also rests {until}, because a job requested that" if rest is not None else ""
        return f"{what} is paused{slots}: `{_resume(use.rule.name)}` resumes it{also}."
    return (
        f"{what} rests {until} because a job requested that (`Defer(limit=...)`, as after a 429); it resumes by itself."
    )


def _no_rate(what: str, use: LimitUse) -> str:
    """The sentence for a rate of 0, which Treadle never sets but other programs may store."""
    return f"{what} lets no job start because its rate is 0: `treadle limits set {use.rule.name}` changes that."


def _resume(name: str) -> str:
    kind, _, queue = name.partition(":")
    return f"treadle queues resume {queue}" if kind == "queue" and queue else f"treadle limits resume {name}"


# --- queued


def _in_line(row: Record, ahead: int | None, glance: Glance, now: float) -> str:
    queue = row.job.queue
    serving = [worker for worker in glance.workers if queue in worker.queues]
    if not serving:
        return f"It is queued, and no worker serves its queue {queue!r}."
    able = [worker for worker in serving if row.job.task in worker.tasks]
    if not able:
        several = f"none of the {len(serving)} workers" if len(serving) > 1 else "the only worker"
        has = "has" if len(serving) > 1 else "does not have"
        return f"It is queued, and {several} of {queue!r} {has} the task {row.job.task!r}."
    if (held_up := _held_up(able, now)) is not None:
        return f"It is queued, but {held_up}."
    able = [worker for worker in able if not _is_silent(worker) and not _pauses(worker)]
    # The workers' figures are as old as their heartbeats; the rows are current.
    runs = sum(each.running for each in glance.queues if each.name == queue)
    free = sum(worker.slots for worker in able) - max(runs, sum(worker.running for worker in able))
    if ahead:
        if free <= 0:
            return f"It is queued behind {_jobs(ahead)} in queue {queue!r}; {_full(able)} are taken."
        workers = f"{_count(len(able), 'worker')} can run it, with {_count(max(0, free), 'free slot')}"
        return f"It is queued behind {_jobs(ahead)} in queue {queue!r}; {workers}."
    if free <= 0:
        return f"It is next in its queue; {_full(able)} that can run it are taken."
    again = "" if (worker := declined_by(row)) is None else f" again, after worker {worker!r} declined it (accept=)"
    return f"It is next in its queue{again}; a worker of {queue!r} will claim it shortly."


def _full(workers: Sequence[Presence]) -> str:
    return f"{_FULL} {_count(len(workers), 'worker')}" if len(workers) > 1 else f"{_FULL} only worker"


def _held_up(able: Sequence[Presence], now: float) -> str | None:
    """Why none of the workers that have the task can claim it; None if one can."""
    heard = [worker for worker in able if not _is_silent(worker)]
    if not heard:
        last = min(able, key=lambda worker: worker.age)
        which = f"the {len(able)} workers" if len(able) > 1 else "the only worker"
        return (
            f"the last heartbeat of {which} that can run it came {_in(last.age)} ago ({last.worker}): if it was killed "
            "or its machine has stopped, start another one"
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


# --- waiting, or ended


def _waiting(row: Record, upstreams: Mapping[str, Record | None]) -> str:
    if not row.job.task:
        return "It is a promise: it waits until a caller settles it."
    open_ = [id for id, up in upstreams.items() if up is None or not up.state.final]
    unknown = [id for id in open_ if upstreams[id] is None]
    signals = [(id, name) for id in open_ if (up := upstreams[id]) and (name := signal_name(up)) is not None]
    if signals and len(open_) == 1:
        return f"It waits for the signal {signals[0][1]!r}."
    named = ", ".join(open_[:3]) + (f" and {len(open_) - 3} more" if len(open_) > 3 else "")
    until = f", until {_at(row.due_at)} at most" if row.due_at is not None else ""
    strangers = f"; not stored yet: {', '.join(unknown[:3])}" if unknown else ""
    done = "It has run and waits for its children" if row.function_done else "It waits"
    of = named or "jobs that have just ended"
    return f"{done}: {_count(row.pending, 'more job')} must end, of {of}{until}{strangers}."


def _ended(row: Record) -> str:
    because = f": {error_line(row.error)}" if row.error else ""
    reason = f" ({row.reason})" if row.reason else ""
    how = "was cancelled" if row.state is State.CANCELLED else str(row.state)
    return f"It {how}{reason} at {_at(row.ended_at)} after {_count(row.attempt, 'attempt')}{because}."


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _jobs(ahead: int) -> str:
    return f"{ahead:,}+ jobs" if ahead >= MOST_AHEAD else _count(ahead, "job")


def _at(seconds: float | None) -> str:
    return "an unknown time" if seconds is None else moment_text(seconds)


def _in(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 10 else f"{max(0.0, seconds):.1f} s"


def _lasts(left: float) -> str:
    return (
        f"lasts another {left:.0f} s"
        if left >= 0
        else f"expired {-left:.0f} s ago, so the job will soon be claimed again"
    )
