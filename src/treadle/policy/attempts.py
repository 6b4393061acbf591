"""The last attempts of a job, kept as checkpoints of its row. Pure.

A run that does not succeed adds one checkpoint to the outcome that is settled anyway; the next run of a job adds one
for a lease that expired. A job that succeeds at its first attempt stores nothing. The last run is derived from the row.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core.claim_ids import worker_name
from treadle.core.clock import moment_text
from treadle.core.errors import UNREADABLE
from treadle.core.events import was_lost
from treadle.core.model import EXPIRED, LOST, LOST_BY, PAUSED, Outcome, Pairs, Record, State
from treadle.core.own_checkpoints import own_checkpoints
from treadle.core.ranges import Natural

KEPT: Final = 10  # attempts of a job; a claim reads all of them
ERROR: Final = 2_000  # characters of the error of one attempt
ATTEMPT: Final = "treadle:attempt:"  # prefix of the checkpoints; their number modulo KEPT follows
DEATH: Final = "treadle:death"  # the checkpoint with how the worker process of a job ended
RELEASED: Final = "released"  # reason of a run that its worker released when it stopped

Ended = Literal["succeeded", "failed", "retrying", "deferred", "lost", "expired", "cancelled", "running"]


class Attempt(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run of a job.

    number      the number of the attempt, from 1. A run that was not counted has the number of the next attempt.
    reopening   how often the job had been reopened before
    started_at  by the storage's clock; None: unknown, because a later claim has replaced it
    ended_at    None: it runs, or its lease expired and nothing has noted when its worker died
    outcome     "deferred": it ended without being counted, for example to run again later or to wait for other jobs
    error       shortened to 2,000 characters; of a lost run, how its worker died
    delay       seconds until the next run: retrying, deferred
    run         the number of the run among those that were kept, from 1
    """

    number: Natural
    reopening: Natural = 0
    started_at: float | None = None
    ended_at: float | None = None
    worker: str | None = None
    outcome: Ended = "running"
    error: str | None = None
    reason: str | None = None
    delay: float | None = None
    run: Natural = 0


_read = msgspec.json.Decoder(Attempt).decode


def stored(record: Record) -> list[Attempt]:
    """The attempts among the checkpoints of a row, in order. Entries that cannot be read are left out."""
    attempts = []
    for name, text in own_checkpoints(record.checkpoints).items():
        if name.startswith(ATTEMPT):
            try:
                attempts.append(_read(text))
            except UNREADABLE:  # another program has stored it
                continue
    return sorted(attempts, key=lambda attempt: attempt.run)


class Death(Struct, frozen=True):
    """The content of `DEATH`, which the supervisor of a worker process stores when the process has ended.

    lost  the `Record.lost` before the loss that the death caused
    how   such as "was killed by SIGKILL"
    at    seconds since 1970, by the supervisor's clock
    """

    lost: Natural
    worker: str
    how: str
    at: float


_read_death = msgspec.json.Decoder(Death).decode


def losses(record: Record) -> Pairs:
    """The checkpoints for leases of this claimed job that expired since the last settle."""
    return tuple(_pair(attempt) for attempt in _losses(record))


def deaths(record: Record) -> list[Attempt]:
    """The runs of this job whose leases expired since it was last reopened, those that are known, in order."""
    known = [run for run in stored(record) if run.outcome == "lost" and run.reopening == record.reopenings]
    return known + (_losses(record) if was_lost(record) else [])


def death_words(death: Attempt) -> str:
    """Such as "worker 'a' was killed by SIGKILL at 2026-11-28 17:20:01 UTC"."""
    when = "" if death.ended_at is None else f" at {moment_text(death.ended_at)}"
    return f"worker {death.worker or 'unknown'!r} {death.error or 'was lost'}{when}"


def _losses(record: Record) -> list[Attempt]:
    """The row names only the worker that lost the last lease, and no longer knows when it claimed the job."""
    known = stored(record)
    run = known[-1].run if known else 0
    noted = sum(attempt.outcome == "lost" and attempt.reopening == record.reopenings for attempt in known)
    new = max(1, record.lost - noted) if run < KEPT else 1  # if there were more, some may have been replaced
    lost = Attempt(number=record.attempt + 1, reopening=record.reopenings, outcome="lost")
    losses = [replace(lost, run=run + number) for number in range(1, min(new, KEPT) + 1)]
    worker = (record.reason or "").removeprefix(LOST_BY)
    losses[-1] = _with_death(record, replace(losses[-1], worker=worker or None))
    return losses


def _with_death(record: Record, lost: Attempt) -> Attempt:
    """The last lost run, with what the supervisor of its worker has noted about its end."""
    try:
        death = _read_death(own_checkpoints(record.checkpoints).get(DEATH, ""))
    except UNREADABLE:  # there is none, or another program has stored it
        return lost
    if death.lost + 1 != record.lost:
        return lost
    return replace(lost, worker=death.worker, error=shortened(death.how), ended_at=death.at)


def noted(
    record: Record,
    outcome: Outcome,
    worker: str | None,
    ended_at: float,
    carried: Pairs = (),
    reason: str | None = None,
) -> Outcome:
    """The outcome of a run that did not succeed, with the checkpoint of its attempt.

    carried  further checkpoints, such as those of `losses`
    reason   None: that of the outcome
    """
    counted, known = outcome.attempt > record.attempt, stored(record)
    lost = sum(name.startswith(ATTEMPT) for name, _ in carried)
    error = outcome.error if counted else None  # if the run is not counted, it is an earlier error
    attempt = Attempt(
        number=record.attempt + 1,
        reopening=record.reopenings,
        started_at=record.started_at,
        ended_at=ended_at,
        worker=worker,
        outcome=_name(record, outcome),
        error=None if error is None else shortened(error),
        reason=reason or outcome.reason,
        delay=outcome.delay if outcome.state is State.READY and outcome.reason != PAUSED else None,
        run=(known[-1].run if known else 0) + lost + 1,
    )
    return replace(outcome, checkpoints=(*outcome.checkpoints, *carried, _pair(attempt)))


def _pair(attempt: Attempt) -> tuple[str, str]:
    return f"{ATTEMPT}{attempt.run % KEPT}", msgspec.json.encode(attempt).decode()


def _name(record: Record, outcome: Outcome) -> Ended:
    if outcome.state is State.FAILED:
        return _ending(outcome)
    if outcome.reason == PAUSED:
        return "failed"
    return "retrying" if outcome.attempt > record.attempt else "deferred"


def shortened(text: str) -> str:
    """The text, shortened in the middle to 2,000 characters: the first line names the error, the last its place."""
    if len(text) <= ERROR:
        return text
    half = ERROR // 2 - 10
    return f"{text[:half]}\n... (shortened) ...\n{text[-half:]}"[:ERROR]


def of(row: Record) -> list[Attempt]:
    """The last attempts of a job, oldest first, at most `KEPT`. The present or last run is derived from the row."""
    attempts, last = stored(row), _last(row)
    if last is not None and not _is_noted(row, attempts):
        attempts.append(replace(last, run=(attempts[-1].run if attempts else 0) + 1))
    return attempts[-KEPT:]


def _is_noted(row: Record, attempts: list[Attempt]) -> bool:
    """Whether the last run that the row knows is among the stored attempts."""
    if not attempts or row.state is State.RUNNING or attempts[-1].started_at != row.started_at:
        return False
    # A clock of a test may stand still: a later attempt then began at the same time, and raised the count.
    return row.attempt == attempts[-1].number - (attempts[-1].outcome == "deferred")


def _last(row: Record) -> Attempt | None:
    """The run that the last claim of a job began; None: it never ran, or it lost its worker too often to run again."""
    if row.started_at is None or (row.state is State.FAILED and row.reason == LOST):
        return None
    attempt = Attempt(
        number=row.attempt + 1,
        reopening=row.reopenings,
        started_at=row.started_at,
        worker=worker_name(row.worker),
    )
    if row.state is State.RUNNING:
        return attempt
    if row.state.final:
        counted = row.state is not State.CANCELLED and row.attempt > 0
        return replace(
            attempt,
            number=max(1, row.attempt) if counted else row.attempt + 1,
            ended_at=row.ended_at,
            outcome=_ending(row),
            error=None if row.error is None else shortened(row.error),
            reason=row.reason,
        )
    if row.reason is not None and row.reason.startswith(LOST_BY):
        worker = row.reason.removeprefix(LOST_BY) or attempt.worker
        return _with_death(row, replace(attempt, outcome="lost", worker=worker))
    return replace(attempt, outcome="deferred", ended_at=row.updated_at, reason=row.reason)


def _ending(row: Record | Outcome) -> Ended:
    if row.state is State.FAILED:
        return "expired" if row.reason == EXPIRED else "failed"
    return "succeeded" if row.state is State.SUCCEEDED else "cancelled"
