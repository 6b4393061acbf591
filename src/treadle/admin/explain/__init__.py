"""Explains in one or two sentences why a job is not running, from its row and a glance at the storage.

Each names the cause, since when and until when as far as the storage knows, the job or worker that holds it up, and the
command that changes it. `reading` reads the facts, the other modules make sentences of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from treadle.admin.explain.cleanup import cleanup
from treadle.admin.explain.facts import Facts, is_due, limits_within, waits_since
from treadle.admin.explain.history import durable
from treadle.admin.explain.limited import blocked, by_parent, closed, closed_limit, full, queue_blocks
from treadle.admin.explain.queued import queued
from treadle.admin.explain.running import overdue, running, scheduled
from treadle.admin.explain.waiting import ended, shed, waiting
from treadle.admin.explain.wording import MOST_AHEAD, at, count, lasting, on_job, start_worker
from treadle.admin.explain.workers import able_to_run, placed, serve
from treadle.core.command_lines import command
from treadle.core.defaults import SYSTEM_QUEUE
from treadle.core.model import SHED, State
from treadle.policy import guilt, pauses
from treadle.storage.row_rules import costs

__all__ = ["MOST_AHEAD", "Facts", "explain", "limits_within"]

LONG = 1.0  # s: after a longer wait, the sentence says since when


def explain(facts: Facts) -> str:
    """Explain the state of a job."""
    return _state(facts) + cleanup(facts)


def _state(facts: Facts) -> str:
    row, mark = facts.row, facts.mark
    if mark is not None and mark.role == "gone":
        return f"Its storage was moved to {mark.other}: look there. Its row here is out of date and says {row.state}."
    if row.reason == SHED:
        return shed(facts)
    if row.state.final:
        return ended(facts)
    if row.state is State.RUNNING:
        return running(facts) + _suspect(facts) + durable(row) + _deadline(facts)
    if row.state is State.WAITING:
        return waiting(facts) + durable(row) + _deadline(facts)
    if mark is not None and mark.role == "closing":
        undo = command("storage", "move", "SOURCE", mark.other, options=["--abort"])
        there = f"Its storage is being moved to {mark.other}: no job starts here any more, and it runs there afterwards"
        return f"{there}; {undo} aborts the move."
    if facts.late:
        return _late(facts)
    if pauses.is_paused(row):
        return pauses.words(row, on_job("resume", row), facts.paused.get(row.id)) + durable(row) + _deadline(facts)
    return _ready(facts) + _since(facts) + _suspect(facts) + durable(row) + _deadline(facts)


def _ready(facts: Facts) -> str:
    row = facts.row
    if row.queue_position is not None:
        return f"{'Its function has run, and its ending is due. ' if row.function_done else ''}{_in_queue(facts)}"
    if row.blocked_on is not None:
        blocks = by_parent(row.blocked_on, facts) or blocked(row.blocked_on, facts)
        return blocks + further(facts, row.blocked_on, due=True)
    if is_due(row, facts.now):
        return overdue(facts, _in_queue(facts))
    return scheduled(facts) + further(facts, None, due=False)


def _in_queue(facts: Facts) -> str:
    if facts.row.function_done:  # no limit holds back an ending
        return queued(facts)
    own = f"queue:{facts.row.job.queue}"
    if (of_queue := by_parent(own, facts) or by_parent("queue", facts) or queue_blocks(facts)) is not None:
        return of_queue + further(facts, own, due=True)
    if (shut := closed_limit(facts)) is not None:
        key, sentence = shut
        return sentence + further(facts, key, due=True)
    more = further(facts, None, due=True)
    return queued(facts, no_room=bool(more)) + more


def _since(facts: Facts) -> str:
    """The sentence that says since when the job has waited; empty for a job that has only just arrived or is not
    due."""
    row = facts.row
    if row.queue_position is None and row.blocked_on is None:
        return ""
    since = waits_since(row)
    return f" It has waited since {at(since)}." if facts.now - since >= LONG else ""


def _suspect(facts: Facts) -> str:
    """Why the job runs alone, if it may have killed its worker."""
    suspicion = guilt.words(facts.row)
    return "" if suspicion is None else f" {suspicion[0].upper()}{suspicion[1:]}."


def _deadline(facts: Facts) -> str:
    """When the job fails because its deadline passes."""
    row, now = facts.row, facts.now
    if row.deadline_at is None or row.function_done:
        return ""
    if not facts.late:
        return f" It fails at {at(row.deadline_at)}, in {lasting(row.deadline_at - now)}, unless it has ended by then."
    if row.state is State.RUNNING and row.due_at is not None and row.due_at > now:
        return f" Its deadline passed at {at(row.deadline_at)}: its worker ends it, or the next claim after its lease."
    return f" {_late(facts)}"


def _late(facts: Facts) -> str:
    """The sentence for a job whose deadline has passed. Any claim ends it, by a worker of any queue."""
    over = f"Its deadline passed at {at(facts.row.deadline_at)}: it fails with the next claim"
    if facts.glance.workers:
        return f"{over}."
    return f"{over}, and no worker is running to make one: {command('worker')} starts one."


NAMED = 3  # further causes that a sentence names


def further(facts: Facts, named: str | None, due: bool) -> str:
    """Sentences about limits besides the one `named`, and about workers if that is a limit and the job is `due`."""
    causes = list(_further_limits(facts, named, due))
    if named is not None and due:
        causes += _workers(facts)
    more = [f"{count(len(causes) - NAMED, 'more cause')} of this kind"] if len(causes) > NAMED else []
    return f" Besides, {'; '.join([*causes[:NAMED], *more])}." if causes else ""


def _further_limits(facts: Facts, named: str | None, due: bool) -> Iterator[str]:
    """The limits that let it not start now. The use of limits may have changed by the time a job is due."""
    for key, cost in costs(facts.row.job):
        use = facts.rule_of(key)
        if key == named or use is None:
            continue
        of_queue = key == f"queue:{facts.row.job.queue}"
        what = f"its queue {facts.row.job.queue!r}" if of_queue else f"the limit {key!r}"
        why = closed(what, use, facts) or (full(what, key, cost, use, facts) if due and use.key == key else None)
        if why is not None:
            yield why


def _workers(facts: Facts) -> Iterator[str]:
    row = facts.row
    queue, task = row.job.queue, row.job.task
    if queue == SYSTEM_QUEUE:
        return
    serving = serve(facts)
    if (lacks := placed(facts)) is not None:
        yield lacks
    elif not serving:
        yield f"no worker serves its queue {queue!r}: {start_worker(queue)} starts one"
    elif not able_to_run(serving, facts):
        yield f"no worker of {queue!r} has the task {task!r}"
