"""Claims jobs by their ids and starts them: the inline jobs of this process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from treadle.core.errors import StorageError
from treadle.core.model import Claim, Record
from treadle.policy.claim_plan import Rooms
from treadle.worker.executor import Executor
from treadle.worker.parts import Suspect, WorkerParts
from treadle.worker.trials import Trials

log = logging.getLogger("treadle")


class ClaimsById:
    """One for each start of a worker.

    loops  what the worker waits for at its stop; each claim under way is one of them
    """

    def __init__(self, parts: WorkerParts, executor: Executor, trials: Trials, loops: list[asyncio.Task[None]]) -> None:
        self._state, self._storage, self._outage = parts.state, parts.storage, parts.outage
        self._lease, self._claimable, self._executor, self._loops = parts.config.lease, parts.tasks, executor, loops
        self._capacity, self._trials, self._now = parts.capacity, trials, parts.app.now
        trials.on_open = self.claim_late
        self._late: list[tuple[str, ...]] = []  # passed here while no claim may begin

    async def run(self, ids: Sequence[str]) -> None:
        """Claim as many of these jobs as there are free slots, and start them. Returns after the first try. If its
        answer is lost, the jobs may be leased to this worker, so the claim is repeated in the background."""
        if (first_try := self._begin(tuple(ids))) is not None:
            await first_try

    def claim_late(self) -> None:
        """Claim the jobs that were passed here while a suspect waited or ran alone."""
        late, self._late = self._late, []
        for ids in late:
            if (first_try := self._begin(ids)) is not None:
                _done(first_try)  # no caller waits for it

    def _begin(self, ids: tuple[str, ...]) -> asyncio.Future[None] | None:
        state = self._state
        slots = min(state.slots.free, len(ids))
        if slots <= 0 or state.stopping:
            return None
        if not self._trials.census.begin_claim(self._trials):
            self._late.append(ids)
            return None
        state.slots.take(slots)
        state.claims_by_id += 1
        first_try: asyncio.Future[None] = state.loop.create_future()
        task = asyncio.Task(self._claim(ids, slots, first_try))
        self._loops.append(task)
        task.add_done_callback(self._loops.remove)
        return first_try

    async def try_alone(self, suspect: Suspect, taken: Callable[[], None]) -> bool:
        """See `WorkerCore.try_alone`."""
        state = self._state
        state.claims_by_id += 1  # a stopping worker waits for it, then releases its job: no other holds the lease
        try:
            record = await self._trials.held(suspect)
        finally:
            state.claims_by_id -= 1
            state.wake.set()
        if record is None:
            return False
        over = self._trials.expect(record, taken)
        state.slots.take()
        self._executor.start_all([record], suspect.sent, suspect.came)
        self._trials.follow(record)
        return await over

    def _light(self) -> Rooms:
        """The claimable tasks that use no resources: room for the others is planned by dispatcher 0 alone."""
        heavy = () if self._capacity is None else self._capacity.heavy
        return {name: room for name, room in self._claimable().items() if name not in heavy}

    async def _claim(self, ids: tuple[str, ...], slots: int, first_try: asyncio.Future[None]) -> None:
        state = self._state
        claim = Claim(
            worker=state.claim_id(),
            limit=slots,
            ids=ids,
            lease=self._lease,
            tasks=self._light(),
            running=tuple(state.running),
        )
        records: Sequence[Record] | None = None
        sent = self._now()
        try:
            while records is None:
                try:
                    records = (await self._storage.claim(claim)).records
                except StorageError as error:
                    _done(first_try)
                    await self._outage.failed("inline", error)
        except Exception as error:
            if first_try.done():
                log.exception("could not claim inline jobs; any worker may run them")
            else:
                first_try.set_exception(error)
        finally:
            self._outage.answered("inline")  # or given up: this caller reports nothing further
            state.claims_by_id -= 1
            state.slots.release(slots - len(records or ()))
            if records:
                self._executor.start_all(records, sent)
            self._trials.census.end_claim(self._trials)
            state.wake.set()
            _done(first_try)


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
