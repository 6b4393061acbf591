"""Decides which lost leases count against a job. Pure.

A worker that dies loses the leases of all its jobs, and one of them may have killed it. Each of them is a suspect: it
runs again alone, and only a lease that is lost while its job runs alone counts towards `max_lost`. The row counts lost
leases; one checkpoint says what they mean. Only jobs that have lost a lease, and those of a worker that stops, have it.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core.defaults import SYSTEM_QUEUE
from treadle.core.errors import UNREADABLE
from treadle.core.model import Outcome, Pairs, Record, State
from treadle.core.own_checkpoints import own_checkpoints
from treadle.core.ranges import Natural
from treadle.policy import attempts

NOTE: Final = "treadle:lost"  # the name of the checkpoint
EXPLAINED: Final = 100  # workers whose end is known to be explained, the latest ones
OLD: Final = re.compile("([0-9]{1,9}):([0-9]{1,9})")  # what 0.9 stored there: the reopenings, and the cleared losses

Standing = Literal["waits", "alone", "shares"]
Kind = Literal["alone", "stopping"]
STANDS: Final[dict[Standing, str]] = {
    "waits": "will be tried alone",
    "alone": "runs alone now",
    "shares": "runs next to other jobs",
}


class Guilt(Struct, frozen=True, omit_defaults=True):
    """The meaning of the lost leases of a job; the content of the checkpoint.

    reopening  the `Record.reopenings` for which it holds: a reopening resets `Record.lost`
    lost       the `Record.lost` for which it holds
    cleared    how many of these count for nothing, because a run of the job has ended or stored a step since, or its
               worker was stopping
    alone      how many of the others were lost while nothing else ran in the process
    kind       what a lease means that is lost while this is stored: "alone", or "stopping", which is cleared
    waits      how often the job has waited in vain to be alone, since it last lost a lease
    shares     its function runs next to other jobs
    """

    reopening: Natural = 0
    lost: Natural = 0
    cleared: Natural = 0
    alone: Natural = 0
    kind: Kind | None = None
    waits: Natural = 0
    shares: bool = False


_read = msgspec.json.Decoder(Guilt).decode


def guilt_of(record: Record) -> Guilt:
    """The meaning of this job's lost leases, including leases that it has lost since the checkpoint was stored."""
    noted = _stored(record)
    if noted.reopening != record.reopenings or noted.lost > record.lost:
        noted = Guilt(reopening=record.reopenings)
    if noted.lost == record.lost:
        return noted
    return replace(
        noted,
        lost=record.lost,
        alone=noted.alone + (noted.kind == "alone"),
        cleared=noted.cleared + (noted.kind == "stopping"),
        kind=None,
        waits=0,
        shares=False,
    )


def _stored(record: Record) -> Guilt:
    text = own_checkpoints(record.checkpoints).get(NOTE, "")
    if old := OLD.fullmatch(text):
        return Guilt(reopening=int(old[1]), lost=int(old[2]), cleared=int(old[2]))
    try:
        return _read(text)
    except UNREADABLE:  # there is none, or another program has stored it
        return Guilt(reopening=record.reopenings)


def is_suspect(record: Record) -> bool:
    """Whether this job may have killed its worker: it runs next while nothing else runs in its process."""
    return record.lost > 0 and guilt_of(record).cleared < record.lost


def standing(record: Record) -> Standing | None:
    """Whether an unfinished suspect waits to run alone, runs alone, or runs next to other jobs. None: it is no suspect,
    or none of its code runs: it is one of Treadle's own, or its function has run."""
    if record.state.final or record.function_done or record.job.queue == SYSTEM_QUEUE or not is_suspect(record):
        return None
    guilt = guilt_of(record)
    if record.state is not State.RUNNING or not (guilt.kind or guilt.shares):
        return "waits"
    return "alone" if guilt.kind == "alone" else "shares"


def culprit_of(record: Record) -> tuple[str, ...]:
    """The workers whose end this job explains: they died while they ran it, and once it ran alone. Empty if it never
    did."""
    if not guilt_of(record).alone:
        return ()
    return tuple(attempt.worker for attempt in attempts.deaths(record) if attempt.worker is not None)


def is_cleared_by(record: Record, explained: Collection[str]) -> bool:
    """Whether another job explains the end of the worker that this suspect lost last. This clears a job only once: if
    there were two culprits, the second loss makes the job run alone."""
    guilt, deaths = guilt_of(record), attempts.deaths(record)
    return not (guilt.alone or guilt.cleared) and bool(deaths) and deaths[-1].worker in explained


def words(record: Record) -> str | None:
    """A clause for people about an unfinished suspect, such as "it is a suspect, because worker 'a' was killed by
    SIGKILL at ..., and will be tried alone"; None: it is no suspect."""
    stands = standing(record)
    if stands is None:
        return None
    deaths = attempts.deaths(record)
    why = f", because {attempts.death_words(deaths[-1])}" if deaths else ""
    return f"it is a suspect{why}, and {STANDS[stands]}"


def trial_note(record: Record) -> Pairs:
    """The note of a run that begins alone: a lease that is lost from now on counts."""
    return _pair(replace(guilt_of(record), kind="alone", shares=False))


def stop_note(record: Record) -> Pairs:
    """The note of a run whose worker stops: a lease that is lost from now on does not count."""
    return _pair(replace(guilt_of(record), kind="stopping"))


def plain_note(record: Record, waited: bool = False) -> Pairs:
    """Replaces `trial_note` once the job is no longer alone, and `stop_note` once its worker no longer stops.

    waited  it has waited in vain to be alone
    """
    guilt = guilt_of(record)
    return _pair(replace(guilt, kind=None, waits=guilt.waits + waited, shares=False))


def sharing_note(record: Record) -> Pairs:
    """The note of a run whose function runs next to other jobs, from its begin or from now on."""
    return _pair(replace(guilt_of(record), kind=None, shares=True))


def cleared_note(record: Record) -> Pairs:
    """The note of a job whose run has ended, in whatever way: the leases that it has lost no longer count."""
    if not record.lost:
        return ()
    return _pair(Guilt(reopening=record.reopenings, lost=record.lost, cleared=record.lost))


def progress_note(record: Record) -> Pairs:
    """The note of a run that stores a step: the leases lost before no longer count, and `kind` stays. (): none did."""
    guilt = guilt_of(record)
    if not record.lost or (guilt.cleared == record.lost and not guilt.alone):
        return ()
    return _pair(Guilt(reopening=record.reopenings, lost=record.lost, cleared=record.lost, kind=guilt.kind))


def with_note(record: Record, note: Pairs) -> Record:
    """The record of a run that stores this note: the next note is derived from it."""
    return replace(record, checkpoints=tuple({**dict(record.checkpoints), **dict(note)}.items())) if note else record


def without_kind(record: Record, outcome: Outcome) -> Outcome:
    """The outcome of a run for which `trial_note` or `stop_note` was stored: these count no longer."""
    if outcome.state.final or any(name == NOTE for name, _ in outcome.checkpoints):
        return outcome
    return replace(outcome, checkpoints=(*outcome.checkpoints, *plain_note(record)))


def _pair(guilt: Guilt) -> Pairs:
    return ((NOTE, msgspec.json.encode(guilt).decode()),)
