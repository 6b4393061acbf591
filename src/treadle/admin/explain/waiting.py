"""Sentences about jobs that wait for other jobs, for a signal or for a caller, and about jobs that have ended."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.admin.explain.facts import Facts
from treadle.admin.explain.locked import words, words_of_row
from treadle.admin.explain.running import still_running
from treadle.admin.explain.wording import at, count, named, on_job, set_limit, worker_of
from treadle.core.command_lines import command
from treadle.core.defaults import SIGNAL_ROW
from treadle.core.errors import error_line
from treadle.core.model import ASKED, CHILDREN, SUPERSEDED, UPSTREAM, Record, State
from treadle.policy.parts import step_of
from treadle.storage import bound_of, bounds_in
from treadle.workflow.approvals import RequestHeader, header_of, words_of
from treadle.workflow.locks import lock_of
from treadle.workflow.signals import signal_name


def waiting(facts: Facts) -> str:
    row, upstreams = facts.row, facts.upstreams
    until = f", until {at(row.due_at)} at most" if row.due_at is not None else ""
    if (lock := lock_of(row.job)) is not None:
        return words_of_row(lock)
    if not row.job.task:
        if (request := header_of(row.job)) is not None:
            whose = f"the request {request.name!r} of job {request.job}"
            return f"It is {whose}: it waits until {words_of(request.by)} decides{until}."
        if (name := signal_name(row)) is not None:
            return f"It is the signal {name!r} of another job: it waits until a caller sends it{until}."
        return f"It is a promise: it waits until a caller settles it{until}."
    if facts.lock is not None:
        return words(facts.lock)
    open_ = [id for id, up in upstreams.items() if up is None or not up.state.final]
    signals = [(id, name) for id in open_ if (up := upstreams[id]) and (name := signal_name(up)) is not None]
    if signals and len(open_) == 1:
        [(id, name)] = signals
        until = until or _signal_ends(upstreams[id])
        return f"It waits for the signal {name!r}{until}: {command('jobs', 'signal', row.job.id, name)} sends it."
    requests = [request for id in open_ if (up := upstreams[id]) and (request := header_of(up.job)) is not None]
    if requests and len(requests) == len(open_):
        return _for_decisions(row, requests, until or _ends(upstreams[open_[0]]))
    if not open_ and facts.holder is not None:
        holder = f"{named(facts.holder)}, which held its key {_key(row)!r} before and {_does(facts.holder)}"
        return f"It waits for {holder}: {on_job('cancel', facts.holder)} ends that job{until}."
    done = "It has run and waits for its children" if row.function_done else "It waits"
    unknown = [id for id in open_ if upstreams[id] is None]
    strangers = f"; not stored yet: {', '.join(unknown[:3])}" if unknown else ""
    if facts.holder is not None:  # it counts as one of the jobs, though the job does not name it
        strangers += f"; one of them, {named(facts.holder)}, held its key {_key(row)!r} before"
    must = "succeed" if row.job.required is not None and row.job.failures_allowed else "end"
    return f"{done}: {count(row.pending, 'more job')} must {must}, of {_named(facts, open_)}{until}{strangers}."


def _for_decisions(row: Record, requests: Sequence[RequestHeader], until: str) -> str:
    """The sentence about a job that waits for decisions only."""
    if len(requests) > 1:
        names = ", ".join(repr(request.name) for request in requests)
        return f"It waits for decisions about {names}: {command('jobs', 'approvals', options=['--job', row.job.id])}."
    [request] = requests
    approves, rejects = (command("jobs", verb, row.job.id, request.name) for verb in ("approve", "reject"))
    decides = f"{words_of(request.by)} decides the request {request.name!r}"
    return f"It waits until {decides}{until}: {approves} approves it, {rejects} rejects it."


def _ends(row: Record | None) -> str:
    return f", until {at(row.deadline_at)} at most" if row is not None and row.deadline_at is not None else ""


def _signal_ends(row: Record | None) -> str:
    """Until when a signal is waited for; "" if the wait has no timeout: then the next row follows this one."""
    ends = row.deadline_at if row is not None else None
    return f", until {at(ends)} at most" if row and ends and ends - row.created_at < SIGNAL_ROW - 1 else ""


def _key(row: Record) -> str:
    return (row.job.key or "").partition(" ")[2] or row.job.key or ""


def _does(row: Record) -> str:
    return f"runs on {worker_of(row)} since {at(row.started_at)}" if row.state is State.RUNNING else f"is {row.state}"


def _named(facts: Facts, open_: list[str]) -> str:
    """The jobs that it waits for; a single one with its state."""
    if len(open_) == 1 and (up := facts.upstreams[open_[0]]) is not None:
        state = f"running on {worker_of(up)} since {at(up.started_at)}" if up.state is State.RUNNING else str(up.state)
        if up.state is State.READY and up.queue_position is None and up.blocked_on is not None:
            state = f"blocked by the limit {up.blocked_on!r}"
        what = f"a try of its step {step!r}" if (step := step_of(up.job)) else up.job.task or "a promise"
        return f"{open_[0]} ({what}, {state}; {on_job('explain', up)} says why)"
    more = f" and {len(open_) - 3} more" if len(open_) > 3 else ""
    return (", ".join(open_[:3]) + more) or "jobs that have just ended"


def ended(facts: Facts) -> str:
    row = facts.row
    because = f": {error_line(row.error)}" if row.error else ""
    reason = f" ({row.reason})" if row.reason else ""
    how = "was cancelled" if row.state is State.CANCELLED else str(row.state)
    end = f"It {how}{reason} at {at(row.ended_at)} after {count(row.attempt, 'attempt')}{because}"
    if row.state is State.SUCCEEDED or not row.job.task:
        return f"{end}."
    stop = "" if end.endswith((".", "!", "?")) else "."
    return f"{end}{stop} {on_job('retry', row)} {_reopens(row)}.{still_running(facts)}"


def _reopens(row: Record) -> str:
    if row.reason == CHILDREN:
        return "runs its failed children again"
    if row.reason in (UPSTREAM, SUPERSEDED, ASKED):
        return "queues it again"
    return "runs it again"


_DROPS = {"drop_oldest": "the jobs that were queued first", "drop_lowest": "the last jobs of a lower priority"}


def shed(facts: Facts) -> str:
    """Explain why an enqueue cancelled this job."""
    row, queue = facts.row, facts.row.job.queue
    cancelled = f"It was cancelled at {at(row.ended_at)}, before it ran, by an enqueue: {error_line(row.error)}."
    return f"{cancelled} {_rule(queue, facts)} {on_job('retry', row)} queues it again, and needs no room."


def _rule(queue: str, facts: Facts) -> str:
    rule = bound_of(bounds_in(facts.glance.limits), queue)
    if rule is None or rule.max_waiting is None:
        return "The queue has no bound any more."
    raised = set_limit(rule, max_waiting=2 * rule.max_waiting)
    if rule.when_full == "refuse":
        return f"Now the rule {rule.name!r} refuses new jobs instead; {raised} doubles its bound."
    return (
        f"The rule {rule.name!r} cancels {_DROPS[rule.when_full]} when the queue is full; {raised} doubles its bound."
    )
