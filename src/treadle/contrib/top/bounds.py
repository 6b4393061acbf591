"""Computes the rule of a queue with another bound, and describes the consequences. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from treadle.cli.output import plural
from treadle.core.defaults import MAX_COUNT
from treadle.core.errors import BadOption
from treadle.core.limit_model import Limit, LimitUse, WhenFull
from treadle.core.queue_rules import ALL, OF
from treadle.server.overview import QueueOverview

COUNTED: Final = 10_000  # jobs of a kind that a look counts
WHEN_FULL: Final[dict[WhenFull, str]] = {
    "refuse": "a call that enqueues more is refused",
    "drop_oldest": "a call that enqueues more cancels the jobs that were queued first",
    "drop_lowest": "a call that enqueues more cancels the last jobs of a lower priority",
}


def number(text: str) -> int | None:
    """The number of jobs that a person typed; None for an empty text: any number. Raises ValueError with the
    problem."""
    bare = text.replace(",", "").replace("_", "").strip()
    if not bare:
        return None
    if not (bare.isascii() and bare.isdecimal()) or not 1 <= int(bare[:20]) <= MAX_COUNT:
        raise ValueError(f"expected 1 to {MAX_COUNT:,}, or nothing for any number")
    return int(bare)


def bounded(uses: Sequence[LimitUse], queue: str, most: int | None, when_full: WhenFull) -> Limit:
    """The rule of the queue with this bound; its slots and rate stay. Raises BadOption if that would change more.

    A queue without a rule of its own obeys the one of all queues, so it gets a copy with this bound.
    """
    own, by_key = f"{OF}{queue}", {use.key: use for use in uses if use.key == use.rule.name}
    use, common = by_key.get(own), by_key.get(ALL)
    rule = None if use is None else use.unpaused
    if rule is None:
        if common is not None and common.pauses and not (use and use.pauses):
            # A rule of its own would take the queue out of that pause.
            raise BadOption(
                f"limit {own!r}", f"queue {queue!r} is paused by the limit {ALL!r}: resume that limit first"
            )
        rule = None if common is None else common.unpaused
        if most is None:
            bound = rule is not None and rule.max_waiting is not None
            problem = (
                f"its bound is that of the limit {ALL!r}: set that limit" if bound else "it has no bound to remove"
            )
            raise BadOption(f"limit {own!r}", problem)
    when: WhenFull = "refuse" if most is None else when_full
    return replace(rule or Limit(own), name=own, max_waiting=most, when_full=when)


def waiting(queue: QueueOverview) -> str:
    """How many jobs of a queue wait to be started, in words."""
    counts = queue.queued, queue.scheduled, queue.blocked
    number = sum(counts) if queue.filled is None else queue.filled
    is_capped = max(counts) >= COUNTED if queue.filled is None else queue.filled_capped
    return f"{'At least ' if is_capped else ''}{plural(number, 'job')} wait{'s' if number == 1 else ''}"
