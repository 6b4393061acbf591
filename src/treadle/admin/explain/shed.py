"""The sentence about a job that a full queue has shed: which rule did it, and the commands that change that."""

from __future__ import annotations

from treadle.admin.explain.facts import Facts
from treadle.admin.explain.wording import at, on_job, set_limit
from treadle.core.errors import error_line
from treadle.storage import bound_of, bounds_in

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
