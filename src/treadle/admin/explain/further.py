"""Sentences about further causes: what still holds a job back once the first cause is gone."""

from __future__ import annotations

from collections.abc import Iterator

from treadle.admin.explain.facts import Facts
from treadle.admin.explain.limited import closed, full
from treadle.admin.explain.placement import placed
from treadle.admin.explain.wording import count, start_worker
from treadle.admin.explain.workers import able_to_run, serve
from treadle.core.defaults import SYSTEM_QUEUE
from treadle.storage.row_rules import costs

NAMED = 3  # further causes that a sentence names


def further(facts: Facts, named: str | None, due: bool) -> str:
    """Sentences about limits besides the one `said`, and about workers if the cause is a limit and the job is `due`."""
    causes = list(_limits(facts, named, due))
    if named is not None and due:
        causes += _workers(facts)
    more = [f"{count(len(causes) - NAMED, 'more cause')} of this kind"] if len(causes) > NAMED else []
    return f" Besides, {'; '.join([*causes[:NAMED], *more])}." if causes else ""


def _limits(facts: Facts, named: str | None, due: bool) -> Iterator[str]:
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
