"""The queues that were full in one pass of a relay, and the calls that wait for room in them.

Once a queue has refused a call, a further call that needs as much room in it would be refused too. Such calls are not
tried again in the same pass. A call is still tried if it is smaller or more urgent (`when_full="drop_lowest"` makes
room for that one), or if a key may spare it the room.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from msgspec import Struct

from treadle.core.errors import UNREADABLE, QueueFull
from treadle.outbox.rows import Call, job_of
from treadle.storage import needs_room
from treadle.storage.row_rules import rank


class Need(Struct, frozen=True):
    """The room that a call needs in one queue.

    jobs    the jobs that need room
    rank    the lowest of their priorities
    keyed   one of them has a key, so it may supersede a job or be answered with another one
    """

    jobs: int
    rank: int
    keyed: bool


class FullQueues:
    """The full queues of one pass. `waiting` has the calls of the current page that wait, by queue."""

    def __init__(self) -> None:
        self._refused: dict[str, list[tuple[Need, QueueFull]]] = {}
        self.waiting: dict[str, tuple[QueueFull, list[Call]]] = {}

    def refuse(self, call: Call, error: QueueFull) -> None:
        """Note that the queue has refused this call, which was alone; it waits."""
        need = needs(call).get(error.queue)
        if need is not None:
            self._refused.setdefault(error.queue, []).append((need, error))
        self._wait(call, error)

    def to_try(self, calls: Sequence[Call]) -> list[Call]:
        """The calls that are worth a try; the others wait."""
        if not self._refused:
            return list(calls)
        tried = []
        for call in calls:
            error = self._refusal(call)
            if error is None:
                tried.append(call)
            else:
                self._wait(call, error)
        return tried

    def take(self) -> list[tuple[QueueFull, list[Call]]]:
        """Return the calls that wait, each with the error of its queue, and forget them."""
        waiting, self.waiting = self.waiting, {}
        return list(waiting.values())

    def _wait(self, call: Call, error: QueueFull) -> None:
        self.waiting.setdefault(error.queue, (error, []))[1].append(call)

    def _refusal(self, call: Call) -> QueueFull | None:
        """The error that the storage would raise for this call; None: it may be accepted, or be refused for ever."""
        with suppress(*UNREADABLE):
            for queue, need in needs(call).items():
                for least, error in self._refused.get(queue, ()):
                    fewer = need.jobs < least.jobs or need.jobs > error.max_waiting
                    if not (fewer or need.keyed or need.rank > least.rank):
                        return error
        return None


def needs(call: Call) -> dict[str, Need]:
    """The needs of a call, by queue. Raises an error of UNREADABLE."""
    needs_of: dict[str, Need] = {}
    for row in call:
        job = job_of(row.text)
        if needs_room(job):
            known = needs_of.get(job.queue) or Need(0, rank(job), False)
            keyed = known.keyed or job.key is not None
            needs_of[job.queue] = Need(known.jobs + 1, min(known.rank, rank(job)), keyed)
    return needs_of
