"""Sentences about running jobs, about jobs that are not due yet, and about jobs that were cancelled while they ran."""

from __future__ import annotations

from treadle.admin.explain.facts import Facts, asleep_in, declined_by, is_due, kept_from
from treadle.admin.explain.limited import closed
from treadle.admin.explain.wording import at, lasting, on_job, worker_of
from treadle.admin.explain.workers import able_to_run, claims, is_silent, serve
from treadle.core.command_lines import command
from treadle.core.defaults import SYSTEM_QUEUE
from treadle.core.errors import error_line
from treadle.core.model import Presence, Record
from treadle.policy import guilt, unread

NEAR = 0.25  # s by which a job may have been claimed before the batch that it opens
_SCHEDULE = "schedule="  # prefix of the label of a schedule's row


def running(facts: Facts) -> str:
    row, now = facts.row, facts.now
    lease, name = (row.due_at or now) - now, worker_of(row)
    worker = _worker(facts)
    if worker is not None and (ends := _gathered(row, worker, now)) is not None:
        return (
            f"Worker {name!r} gathers it with other jobs of {row.job.task!r} for one call, which begins when the batch "
            f"is full, or at {at(ends)}; its lease {_lasts(lease, facts)}."
        )
    again = f" (attempt {row.attempt + 1})" if row.attempt else ""
    done = f", {row.progress:.0%} done" if row.progress is not None else ""
    silent = ""
    if worker is not None and is_silent(worker):
        silent = f"; the last heartbeat of {name} came {lasting(worker.age)} ago"
    since = f"It has been running on {name} since {at(row.started_at)}{again}{done}{silent}"
    if guilt.standing(row) == "waits":
        since = f"Worker {name!r} has held it since {at(row.started_at)}, until it can run alone{silent}"
    return f"{since}; its lease {_lasts(lease, facts)}."


def _worker(facts: Facts) -> Presence | None:
    return next((worker for worker in facts.glance.workers if worker.worker == worker_of(facts.row)), None)


def _gathered(row: Record, worker: Presence, now: float) -> float | None:
    """When the worker will start the batch that the job is gathered for; None if the job is not being gathered."""
    beat = now - worker.age
    for task, waited, rest in worker.gathering:
        if task == row.job.task and row.started_at is not None and row.started_at >= beat - waited - NEAR:
            return beat + rest if beat + rest > now else None
    return None


def _lasts(remaining: float, facts: Facts) -> str:
    if remaining >= 0:
        worker = _worker(facts)
        silent = worker is not None and is_silent(worker)
        return f"lasts another {remaining:.0f} s" + (", after which another worker claims the job" if silent else "")
    return f"expired {-remaining:.0f} s ago{_claimed_again(facts)}"


def _claimed_again(facts: Facts) -> str:
    """The consequence of an expired lease: the next claim queues the job, then it waits as every queued job."""
    queue = facts.row.job.queue
    if facts.late:
        return ""
    if not [worker for worker in able_to_run(serve(facts), facts) if claims(worker)]:
        return f", and no worker serves its queue {queue!r} to claim the job again"
    use = facts.rule_of(f"queue:{queue}")
    shut = closed(f"its queue {queue!r}", use, facts) if use is not None else None
    return f", and {shut}" if shut else ", so the job will soon be claimed again"


def still_running(facts: Facts) -> str:
    """The words for a job that was cancelled while it ran, if its worker may not have stopped the function yet."""
    row, worker = facts.row, _worker(facts)
    if worker is None or row.ended_at is None or facts.now - worker.age >= row.ended_at:
        return ""
    most = row.ended_at + worker.ttl / 9
    return f" Its function may run on {worker.worker} until that worker's next heartbeat, due by {at(most)}."


# --- not due yet


def scheduled(facts: Facts) -> str:
    """The sentence for a ready job that is not queued yet."""
    row, now = facts.row, facts.now
    if row.job.queue == SYSTEM_QUEUE and dict(row.checkpoints).get("paused"):
        return _paused_schedule(row)
    schedule = _schedule(row)
    when = f"at {at(row.due_at)}, in {lasting(max(0.0, (row.due_at or now) - now))}"
    if row.deadline_at is not None and row.due_at == row.deadline_at and not row.function_done:
        when = "only after its deadline"
    if (unreadable := unread.words(row)) is not None:
        why = f"{unreadable}; it is offered again {when}"
    elif (worker := declined_by(row)) is not None:
        why = f"worker {worker!r} declined it (accept=), and it is offered again {when}"
    elif (step := asleep_in(row)) is not None:
        why = f"it sleeps in its {step}, and runs again {when}"
    elif (lock := kept_from(row)) is not None:
        why = f"it is kept from {lock}; it tries again {when}"
    elif row.attempt and row.error:
        why = f"attempt {row.attempt} failed and the next one is due {when} ({error_line(row.error)})"
    elif row.started_at is not None and row.reopenings == 0:
        why = f"its run of {at(row.started_at)} has deferred it, and it is due {when}"
        if facts.mark is not None:
            why = f"it ran when the jobs were moved here, or deferred itself, and it is due {when}"
    else:
        why = f"it is due {when}"
    if schedule is not None:
        once = command("schedules", "trigger", schedule)
        return f"It is the schedule {schedule!r}, and {why}; {once} runs its job once at once."
    return f"It is not queued yet: {why}; {on_job('run-now', row)} queues it at once."


def overdue(facts: Facts, sentence: str) -> str:
    """The sentence for a job that is due and that no claim has queued yet."""
    assert is_due(facts.row, facts.now)
    return f"It has been due since {at(facts.row.due_at)}, and the next claim queues it. {sentence}"


def _schedule(row: Record) -> str | None:
    """The name of the schedule that this row of Treadle's own queue stores."""
    if row.job.queue != SYSTEM_QUEUE:
        return None
    return next((label.removeprefix(_SCHEDULE) for label in row.job.labels if label.startswith(_SCHEDULE)), None)


def _paused_schedule(row: Record) -> str:
    name = _schedule(row) or row.job.id
    begin = command("schedules", "resume", name)
    if dict(row.checkpoints).get("paused") == "ended":
        return f"It is the schedule {name!r}, whose function returned no further time: {begin} begins it anew."
    return f"It is the schedule {name!r}, which is paused: {begin} resumes it."
