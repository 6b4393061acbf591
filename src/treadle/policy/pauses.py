"""The pause of one job: a row that is not due for 100 years, and how the job continues when it is resumed. Pure.

A checkpoint keeps what the row said before. Instants stay as they are: a sleep that ends during the pause is over.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core.clock import moment_text
from treadle.core.defaults import MAX_DELAY, SYSTEM_QUEUE
from treadle.core.errors import UNREADABLE
from treadle.core.model import ASLEEP, PAUSED, Outcome, Record, State
from treadle.policy.judge import released
from treadle.policy.parts import is_part
from treadle.policy.retry import PAUSE

SOON: Final = 0.001  # s


class Pause(Struct, frozen=True, omit_defaults=True):
    """The content of `PAUSE`.

    due      when the job would have been due, by the storage's clock; None: it ran, was queued, or waited in its run
    asleep   the reason of a job that slept: the sleep is over once it is due
    unbegun  it waited for the jobs of `after`, and had not begun
    used_up  it was paused because its attempts were used up: they count from 0 again
    """

    due: float | None = None
    asleep: str | None = None
    unbegun: bool = False
    used_up: bool = False


_read = msgspec.json.Decoder(Pause).decode


def is_paused(record: Record) -> bool:
    """Whether this job waits until it is resumed."""
    return record.state is State.READY and record.reason == PAUSED


def due_at(record: Record) -> float | None:
    """When the job is due, for people and programs: a paused one is not due before it is resumed."""
    return None if is_paused(record) else record.due_at


def paused_at(record: Record) -> float | None:
    """Since when the job is paused; None: it is not."""
    return record.updated_at if is_paused(record) else None


def refusal(record: Record) -> str | None:
    """Why this row cannot be paused or resumed; None: it can."""
    if record.state.final:
        return f"{record.state}: only unfinished jobs can be paused and resumed"
    if not record.job.task or record.job.queue == SYSTEM_QUEUE:
        return f"{record.state}: a row of Treadle's own, which runs no function of yours"
    if is_part(record.job):
        return f"{record.state}: the cleanup or a step of job {record.job.parent}; it cannot be paused"
    if record.function_done:
        return f"{record.state}: its function has run, and it waits for its children; pause these"
    return None


def paused(record: Record) -> Outcome | None:
    """Not due until it is resumed; None: it is paused already, or cannot be."""
    if is_paused(record) or refusal(record) is not None:
        return None
    pause = PAUSE, msgspec.json.encode(_pause_of(record)).decode()
    return released(record, MAX_DELAY, (pause,), reason=PAUSED)


def _pause_of(record: Record) -> Pause:
    unbegun = record.state is State.WAITING and record.started_at is None
    scheduled = record.state is State.READY and record.queue_position is None and record.blocked_on is None
    asleep = record.reason if (record.reason or "").startswith(ASLEEP) else None
    return Pause(record.due_at if unbegun or scheduled else None, asleep, unbegun)


def last_pause(record: Record) -> Pause:
    """The last pause of a job. One that cannot be read counts as that of a queued job."""
    try:
        return _read(dict(record.checkpoints).get(PAUSE, "{}"))
    except UNREADABLE:  # another program has stored it
        return Pause()


def resumed(record: Record, now: float) -> Outcome | None:
    """The job continues as before the pause; None: it is not paused. `now`: by the storage's clock."""
    if not is_paused(record):
        return None
    pause = last_pause(record)
    rest = 0.0 if pause.due is None else max(0.0, pause.due - now)
    out = released(record, rest, reason=pause.asleep)
    if pause.used_up:
        out = replace(out, attempt=0)
    if not pause.unbegun:
        return out
    job = record.job
    return replace(
        out,
        state=State.WAITING,
        delay=0.0 if pause.due is None else max(rest, SOON),
        after=record.after,
        required=job.required,
        failures_allowed=job.failures_allowed,
    )


def words(record: Record, resume: str, by: tuple[float, str] | None) -> str:
    """The sentence about a paused job.

    resume  the command that resumes it
    by      when and by whom it was paused, as far as the audit log says
    """
    pause = last_pause(record)
    who = "" if by is None else f" by {by[1]}"
    since = f"It is paused since {moment_text(record.updated_at)}{who}: {resume}"
    if pause.used_up:
        since = f"It is paused since {moment_text(record.updated_at)}, because its attempts are used up"
        return f"{since}: {resume} gives it as many again."
    if pause.unbegun:
        return f"{since} lets it wait for its jobs again."
    due = "" if pause.due is None else f", or at {moment_text(pause.due)} if that has not passed"
    return f"{since} queues it again{due}."
