"""The rules of our own simulations, in addition to those of the checker."""

from __future__ import annotations

from collections import Counter

from treadle.core.model import ASKED, State
from treadle.testing.simulation import Simulation


def paused_queues_start_nothing(sim: Simulation) -> None:
    """No job of a paused queue is claimed between the answer to a pause and the first call that resumes the queue.
    If a pause and a resume overlap, either may come last."""
    paused: set[str] = set()
    alone: dict[str, set[str]] = {}  # queue -> operators whose pause is under way, and met no resume
    resuming = Counter[str]()
    queue_of = {row.job.id: row.job.queue for row in sim.rows}
    for entry in sim.entries:
        facts = entry.facts
        if "pausing" in facts and not resuming[facts["pausing"]]:
            alone.setdefault(facts["pausing"], set()).add(entry.actor)
        elif "paused" in facts and entry.actor in alone.get(facts["paused"], ()):
            alone[facts["paused"]].discard(entry.actor)
            paused.add(facts["paused"])
        elif "resumed" in facts:
            resuming[facts["resumed"]] += 1
            alone.pop(facts["resumed"], None)
            paused.discard(facts["resumed"])
        elif "was_resumed" in facts:
            resuming[facts["was_resumed"]] -= 1
        elif entry.what == "claimed" and not _has_run(sim, entry.id):
            assert queue_of.get(entry.id) not in paused, f"{entry.id} was claimed at {entry.at:g} from a paused queue"


def _has_run(sim: Simulation, id: str) -> bool:
    return any(row.function_done and row.job.id == id for row in sim.rows)


def no_child_goes_on_after_a_cancel(sim: Simulation) -> None:
    """After a job was cancelled, no child that it waits for is claimed for the first time."""
    root = {row.job.id: row.job.root or row.job.id for row in sim.rows}
    retried = {root.get(entry.id) for entry in sim.entries if entry.what == "act" and entry.name == "retry"}
    answered = {entry.id: entry.at for entry in sim.entries if entry.what == "acted" and entry.name == "cancel"}
    claims = {entry.id: entry.at for entry in sim.entries if entry.what == "claimed" and entry.version == 1}
    rows = {row.job.id: row for row in sim.rows}
    for id, at in answered.items():
        row = rows.get(id)
        if row is None or row.state is not State.CANCELLED or row.reason != ASKED or root[id] in retried:
            continue
        for child in row.after:
            if child in rows and rows[child].job.parent == id:
                assert claims.get(child, 0.0) <= at, f"{child} began after its parent {id} was cancelled"


INVARIANTS = paused_queues_start_nothing, no_child_goes_on_after_a_cancel
