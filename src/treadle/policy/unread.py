"""Decides whether a job returns to its queue or fails when a worker cannot read its texts. Pure.

The row keeps in a checkpoint when this began and how often it was released since, with the round that this belongs to.
A worker that can read the texts clears it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from treadle.core.clock import moment_text
from treadle.core.errors import ARGUMENTS
from treadle.core.model import DECLINED, Outcome, Pairs, Record
from treadle.policy import judge

UNREAD: Final = "treadle:unread"  # the checkpoint: "<reopenings>:<releases>:<instant of the first>"
FIRST: Final = 5.0  # s until such a job is claimed again; the time doubles with each release
LONGEST: Final = 3_600.0  # s, the longest such time
LIMIT: Final = 86_400.0  # s after the first release; then the job fails


class Unread(NamedTuple):
    """How often a job was released because a worker could not read its texts, and when this began."""

    times: int
    since: float


def unread(record: Record) -> Unread | None:
    """None: a worker could read the texts, or none has tried in this round."""
    reopenings, _, rest = dict(record.checkpoints).get(UNREAD, "").partition(":")
    times, _, since = rest.partition(":")
    try:
        return Unread(int(times), float(since)) if reopenings == str(record.reopenings) else None
    except ValueError:  # another program has stored it
        return None


def again(record: Record, moment: float, least: float = 0.0) -> tuple[float, Pairs] | None:
    """The seconds until the job is claimed again, and the checkpoint that says so; None: its time is over.

    moment  now, by the storage's clock
    least   s that the job waits in any case
    """
    times, since = unread(record) or Unread(0, moment)
    remaining = since + LIMIT - moment
    if remaining <= 0:
        return None
    delay = max(min(FIRST * 2.0 ** min(times, 20), LONGEST), least)
    return min(delay, max(remaining, 1.0)), ((UNREAD, f"{record.reopenings}:{times + 1}:{since!r}"),)


def released(record: Record, worker: str, why: str, moment: float, carried: Pairs = (), least: float = 0.0) -> Outcome:
    """The outcome of a job that cannot run here: released, uncounted; or failed, once its time is over."""
    wait = again(record, moment, least)
    if wait is None:
        return judge.ended(record, ARGUMENTS, over(why), carried)
    delay, pairs = wait
    return judge.released(record, delay, (*carried, *pairs), reason=DECLINED + worker)


def over(why: str) -> str:
    """The error of a job that fails."""
    return f"no worker could read its texts for {LIMIT / 3_600:.0f} hours: {why}"


def cleared(record: Record) -> Pairs:
    """The checkpoint of a job whose texts were read."""
    return ((UNREAD, ""),) if unread(record) is not None else ()


def words(record: Record) -> str | None:
    """The words for a job that waits for a worker that can read its texts; None: it does not."""
    if (wait := unread(record)) is None:
        return None
    tries = "once" if wait.times == 1 else f"{wait.times} times"
    return (
        f"workers without the key or the blob store of its texts released it {tries}, uncounted: it waits for one that "
        f"has them until {moment_text(wait.since + LIMIT)}; then it fails"
    )
