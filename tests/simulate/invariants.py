"""The rules of our own simulations, in addition to those of the checker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tests.simulate.promptness import due_jobs_start_soon
from treadle.core.model import ASKED, CHILDREN, Record, State
from treadle.testing.history.entries import moments
from treadle.testing.simulation import Simulation

MOST = {"hopeless": 2, "racing": 1}  # attempts of the tasks that have few
LONGEST = 4.0  # seconds between two ticks of our schedules


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
    answered = {entry.id: entry.at for entry in sim.entries if entry.what == "acted" and entry.how == "cancelled"}
    claims = {entry.id: entry.at for entry in sim.entries if entry.what == "claimed" and entry.version == 1}
    rows = {row.job.id: row for row in sim.rows}
    for id, at in answered.items():
        row = rows.get(id)
        if row is None or row.state is not State.CANCELLED or row.reason != ASKED or root[id] in retried:
            continue
        for child in row.after:
            if child in rows and rows[child].job.parent == id:
                assert claims.get(child, 0.0) <= at, f"{child} began after its parent {id} was cancelled"


def no_lease_is_lost_without_a_fault(sim: Simulation) -> None:
    """A worker that runs and reaches the storage keeps its jobs."""
    lost = [row.job.id for row in sim.rows if row.lost]
    assert sim.case.faults or not lost, f"{lost} lost leases, although nothing went wrong"


def schedules_go_on(sim: Simulation) -> None:
    """Each schedule waits for its next tick. Until the next heartbeat it is late by as long as the clock was ahead."""
    rows = [row for row in sim.rows if row.job.task.startswith("treadle.schedule")]
    ahead = sum(abs(fault.seconds) for fault in sim.case.faults if fault.kind == "clock")
    for row in rows:
        assert row.state in (State.READY, State.RUNNING), f"{row.job.id} is {row.state}"
        late = (row.due_at or 0.0) - sim.now() - LONGEST - ahead
        assert row.state is State.RUNNING or late <= 0, f"{row.job.id} makes its next tick {late:g} s too late"


def a_parent_fails_because_of_a_child(sim: Simulation) -> None:
    """A retry that reopens the failed child of a job reopens that job too, or lets it wait again if a worker is just
    ending it."""
    children: dict[str, list[Record]] = {}
    for row in sim.rows:
        if row.job.parent is not None and row.job.task:
            children.setdefault(row.job.parent, []).append(row)
    for row in sim.rows:
        own = children.get(row.job.id, ())
        if row.state is State.FAILED and row.reason == CHILDREN and own:
            done = all(child.state is State.SUCCEEDED for child in own)
            assert not done, f"{row.job.id} failed, and all its children have succeeded"


def a_cancelled_run_stops(sim: Simulation) -> None:
    """A worker that runs and reaches the storage stops a cancelled function within a lease."""
    if sim.case.faults:
        return
    lease = sim._settings.lease
    ends = moments(sim.entries, "ended")
    began = moments(sim.entries, "began")
    for entry in sim.entries:
        if entry.what == "acted" and entry.how == "cancelled":
            for (id, version), at in began.items():
                if id == entry.id and at < entry.at:
                    ended = ends.get((id, version), sim._loop.now)
                    assert ended <= entry.at + lease, f"{id} ran for {ended - entry.at:g} s after it was cancelled"


def a_lost_job_keeps_its_turn(sim: Simulation) -> None:
    """A job whose worker was killed is claimed before an equal one that was enqueued later. If the clock steps, its
    lease may last longer."""
    if any(fault.kind == "clock" for fault in sim.case.faults):
        return
    rows = {row.job.id: row for row in sim.rows}
    claims = {(entry.id, entry.version): entry for entry in sim.entries if entry.what == "claimed"}
    killed = {entry.actor: entry.at for entry in sim.entries if entry.what == "crashed"}
    asked = {entry.id: entry.at for entry in reversed(sim.entries) if entry.what == "asked"}
    stored = {entry.id: entry.at for entry in reversed(sim.entries) if entry.what == "stored" and not entry.name}
    for (id, version), claim in claims.items():
        back, died = claims.get((id, 2)), killed.get(claim.name.rpartition("#")[0])
        if version != 1 or back is None or died is None or id not in stored or not _equal(rows, id, id):
            continue
        free = max(claim.at, died) + sim._settings.lease + 0.1  # a call may travel for some time
        for (other, first), its in claims.items():
            if first == 1 and free < its.at < back.at and asked.get(other, 0.0) > stored[id]:
                assert not _equal(rows, id, other), (
                    f"{other} was claimed before {id}, which was lost and enqueued earlier"
                )


def _equal(rows: Mapping[str, Record], id: str, other: str) -> bool:
    """Whether nothing but their turn decides which of the two starts first."""
    one, two = rows.get(id), rows.get(other)
    if one is None or two is None or one.reopenings or two.reopenings:
        return False
    ours, theirs = one.job, two.job
    held = [job.delay or job.after or job.key or job.parent or job.limits or job.lane for job in (ours, theirs)]
    same = (ours.task, ours.queue, ours.priority, ours.aging) == (theirs.task, theirs.queue, theirs.priority, 0)
    return same and not any(held)


def only_failures_count(sim: Simulation) -> None:
    """A run counts as an attempt if it raised or returned, not if its worker was stopped or lost."""
    raised = Counter(entry.id for entry in sim.entries if entry.what == "ended" and entry.how == "raised")
    for row in sim.rows:
        most = MOST.get(row.job.task.rpartition(".")[2], raised[row.job.id] + 1)
        if row.job.task and not row.job.task.startswith("treadle"):
            assert row.attempt <= most, f"{row.job.id} counts {row.attempt} attempts, at most {most} were made"


def an_overtaken_run_stops(sim: Simulation) -> None:
    """A worker that reaches the storage stops a run within a lease after another worker has claimed its job."""
    if any(fault.kind not in ("kill", "stop", "stall") for fault in sim.case.faults):
        return
    ends = moments(sim.entries, "ended")
    gone = {entry.actor: entry.at for entry in sim.entries if entry.what == "crashed"}
    stalls: dict[str, float] = {}
    for entry in sim.entries:
        if entry.what == "stalled":
            stalls[entry.actor] = max(stalls.get(entry.actor, 0.0), entry.at)
    claims = moments(sim.entries, "claimed")
    for entry in sim.entries:
        if entry.what == "began" and (next_claim := claims.get((entry.id, entry.version + 1))) is not None:
            until = max(next_claim, entry.at, stalls.get(entry.actor, 0.0)) + sim._settings.lease
            ended = min(ends.get((entry.id, entry.version), sim._loop.now), gone.get(entry.actor, sim._loop.now))
            assert ended <= until, f"{entry.id} ran for {ended - until:g} s after its worker could have known"


def results_of_upstreams_are_kept(sim: Simulation) -> None:
    """A job finds the rows of all that it waited for, also when a retry of one of them has reopened it."""
    for row in sim.rows:
        assert "UnknownJob" not in (row.error or ""), f"{row.job.id} did not find a job that it waited for: {row.error}"


ALWAYS = (
    results_of_upstreams_are_kept,
    no_lease_is_lost_without_a_fault,
    schedules_go_on,
    a_cancelled_run_stops,
    a_lost_job_keeps_its_turn,
    an_overtaken_run_stops,
    due_jobs_start_soon,
)
INVARIANTS = (
    paused_queues_start_nothing,
    no_child_goes_on_after_a_cancel,
    a_parent_fails_because_of_a_child,
    only_failures_count,
    *ALWAYS,
)
