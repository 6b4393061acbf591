"""The changes that an estimate tries out: more workers, more slots or starts of a limit, and what is paused resumed."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from treadle.admin.estimate.fleet import Extra
from treadle.admin.estimate.snapshot import Snapshot
from treadle.admin.explain.wording import command, count, resume, set_limit, start_worker
from treadle.core.limit_model import LimitUse
from treadle.core.model import Record, State
from treadle.storage.row_rules import costs

SLOTS = 20  # of a worker where none serves the queue yet: the default


class Option(Struct, frozen=True):
    """A change in words, the command that makes it, and what it is in a virtual run."""

    what: str
    command: str
    extra: Extra


def of_job(copy: Snapshot, row: Record) -> Iterator[Option]:
    """The changes that may let this job start earlier."""
    if row.state is State.READY and row.queue_position is None and row.blocked_on is None:
        yield Option("it is queued now", _plain(command("jobs", "run-now", row.job.id)), Extra(now=True))
    yield from _more_workers(copy, row.job.queue)
    for key, _ in costs(row.job):
        uses = {use.key: use for use in copy.limits}
        use = uses.get(key) or uses.get(key.partition(":")[0])
        if use is not None:
            yield from _of_limit(use)


def of_queue(copy: Snapshot, queue: str) -> Iterator[Option]:
    """The changes that may empty this queue earlier."""
    yield from _more_workers(copy, queue)
    named = {f"queue:{queue}", "queue"}
    named |= {key.partition(":")[0] for row in copy.rows if row.job.queue == queue for key, _ in row.job.limits}
    for use in copy.limits:
        if use.key in named:
            yield from _of_limit(use)


def _more_workers(copy: Snapshot, queue: str) -> Iterator[Option]:
    slots = next((worker.slots for worker in copy.workers if queue in worker.queues), SLOTS)
    start = _plain(start_worker(queue, "--concurrency", str(slots)))
    for number in (1, 2):
        what = f"{count(number, 'more worker')} with {count(slots, 'slot')}{' each' if number > 1 else ''}"
        yield Option(what, start, Extra(workers=number, slots=slots))


def _of_limit(use: LimitUse) -> Iterator[Option]:
    rule = use.behind if use.pauses and use.behind is not None else use.rule
    if use.pauses or rule.slots == 0:
        # A hold ends by itself; the command does not end it.
        if any(pause.why == "paused" for pause in use.pauses) or not use.pauses:
            yield Option(f"{use.key!r} is resumed", _plain(resume(use.rule.name)), Extra(resumed=(use.rule.name,)))
        return
    if rule.slots is not None:
        slots = 2 * rule.slots
        what = f"{rule.name!r} has {slots:,} slots instead of {rule.slots:,}"
        yield Option(what, _plain(set_limit(rule, slots=slots)), Extra(limits=(replace(rule, slots=slots),)))
    if rule.rate:
        rate = 2 * rule.rate
        burst = None if rule.burst is None else max(rule.burst, rate)
        what = f"{rule.name!r} allows {rate:,} starts per {rule.per:g} s instead of {rule.rate:,}"
        faster = replace(rule, rate=rate, burst=burst)
        yield Option(what, _plain(set_limit(rule, rate=rate)), Extra(limits=(faster,)))


def _plain(command: str) -> str:
    return command.strip("`")
