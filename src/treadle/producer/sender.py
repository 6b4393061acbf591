"""Stores the jobs of concurrent calls in shared requests, and keeps calls that wait for another transaction apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from treadle.core.clock import monotonic
from treadle.core.errors import Locked
from treadle.core.model import NewJob, Record
from treadle.producer.batching import Batcher
from treadle.storage.locked_calls import PATIENCE, patiently

Store = Callable[[list[NewJob]], Awaitable[Sequence[Record]]]

MOST = 1_000  # jobs of one request


class Sender:
    """Calls whose jobs no other transaction can hold up share requests. So do the others, in requests of their own; of
    these, a call that is held up is repeated alone, so that it delays no other call.

    A request of the second kind is sent after those of the first kind that came before it: its jobs may wait for their
    jobs (`after`).
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._free: Batcher[NewJob, Record] = Batcher(store, MOST, at_once=True)
        self._bound: Batcher[NewJob, Record] = Batcher(store, MOST, at_once=True, waits=_concerns)
        self._held: Counter[str] = Counter()  # keys and ids for which calls wait

    def __call__(self, jobs: Sequence[NewJob]) -> Awaitable[Sequence[Record]]:
        # a call and a generator for each job would cost 1 % of an enqueue
        for job in jobs:
            if job.key is not None or job.nonce is not None or job.after:  # another open transaction may hold these
                return self._send(jobs)
        return self._free(jobs)

    async def _send(self, jobs: Sequence[NewJob]) -> Sequence[Record]:
        names, begun = {_name(job) for job in jobs}, monotonic()
        if not self._held or names.isdisjoint(self._held):
            if any(job.after for job in jobs):
                await self._free.all_before()
            try:
                return await self._bound(jobs)
            except Locked:
                if monotonic() - begun > PATIENCE:  # the storage has waited as long itself
                    raise
        self._held.update(names)
        try:
            return await patiently(lambda: self._store(list(jobs)))
        finally:
            self._held.subtract(names)
            self._held = +self._held


def _name(job: NewJob) -> str:
    return job.id if job.key is None else job.key


def _concerns(error: Locked, jobs: Sequence[NewJob]) -> bool:
    return any(job.id in error.jobs for job in jobs)
