"""The hot loop: one request settles the outcomes of ended jobs and claims jobs for the free slots; then the jobs start.

Outcomes that arrive during a request go with the next one. There is no linger timer: one of 0.5-2 ms cost 20-40 % of
the throughput.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from treadle.core import defaults
from treadle.core.errors import PASSING, StorageError, TreadleError
from treadle.core.model import Claim, Claimed, Outcome, Record, Settled
from treadle.policy.claim_plan import ClaimPlan
from treadle.storage import fused
from treadle.storage.contract import Storage
from treadle.worker.claim_builder import ClaimBuilder
from treadle.worker.config import WorkerConfig
from treadle.worker.executor import Executor
from treadle.worker.handoff import HandOff
from treadle.worker.parts import WorkerParts
from treadle.worker.running_job import Ended
from treadle.worker.settler import Settler
from treadle.worker.trials import Trials

NOTHING = Claimed()
START = 64  # jobs started in one turn of the event loop; starting 128 no-op jobs blocked it for 5 ms
DISPATCHERS = 2  # one request is under way while the jobs of the other run: +50 % on a network storage


def dispatchers_for(config: WorkerConfig, storage: Storage) -> int:
    """How many dispatchers a worker with these settings has."""
    return 1 if config.concurrency == 1 or config.ordered or storage.capabilities.single_caller else DISPATCHERS


def share_of(parts: WorkerParts) -> tuple[int, bool]:
    """Return the most jobs that one dispatcher claims at once, and whether the second one is a spare. If round trips
    are expensive and one trip carries everything, dispatcher 0 makes all of them."""
    storage, concurrency = parts.storage, parts.config.concurrency
    if concurrency <= storage.capabilities.one_trip_up_to:
        return concurrency, True
    return -(-concurrency // dispatchers_for(parts.config, storage)), False


class Dispatcher:
    """One of the one or two dispatchers that share a worker's slots. They never claim more jobs than slots are free."""

    def __init__(
        self,
        number: int,
        parts: WorkerParts,
        build_claim: ClaimBuilder,
        handoff: HandOff,
        executor: Executor,
        settler: Settler,
        trials: Trials,
    ) -> None:
        self._number, self._batch_size, self._settles_only = number, *share_of(parts)
        self._state, self._storage, self._batches = parts.state, parts.storage, parts.batches
        self._outage, self._poll, self._label = parts.outage, parts.config.poll, f"dispatcher {number}"
        self._build_claim, self._handoff = build_claim, handoff
        self._executor, self._settler, self._trials = executor, settler, trials
        self._fused, self._capacity, self._now = fused(parts.storage), parts.capacity, parts.app.now
        self._included_system_queue = True  # whether the last claim did
        self._claims = False  # the request under way may bring jobs; the census counts it
        self._plan: ClaimPlan | None = None  # the plan of the next claim; None: a worker without resources

    async def run(self) -> None:
        """Make requests until the worker has stopped and every outcome is settled."""
        state = self._state
        while True:
            limit = self._limit()  # before the outcomes are taken: a suspect has ended once its outcome is stored
            ended = [] if self._leaves_all_to_first() else state.unconfirmed.take()
            if ended or limit or self._handoff.outstanding:
                await self._request(ended, limit)
                await asyncio.sleep(0)  # a storage that answers at once must not hold the loop for the whole drain
            elif state.is_done:
                return
            else:
                state.wake.clear()
                if (self._leaves_all_to_first() or not state.unconfirmed.waiting) and not self._limit():
                    await state.wake.wait()

    def _leaves_all_to_first(self) -> bool:
        """Whether dispatcher 0 settles and claims alone: few jobs come and it is not on a trip, or this dispatcher is a
        spare. Two concurrent trips for one job would only wait for each other."""
        state = self._state
        if not self._number or not state.claiming:
            return False
        return 0 not in state.unconfirmed.sent if state.demand.one_is_enough else self._settles_only

    def _limit(self) -> int:
        """How many jobs the next claim may bring; 0: no claim."""
        state, demand = self._state, self._state.demand
        if self._trials.look() or not state.claiming or state.pause:
            return 0
        if self._leaves_all_to_first() or (self._number and demand.one_is_enough and not demand.notified):
            return 0
        limit = self._batch_size
        if self._batches.open:
            # Only dispatcher 0 claims items of batches, which take no slot while they wait. When it claimed for half of
            # the slots, and the claims of the other dispatcher brought nothing, a call of 50 items took ten trips.
            limit = 0 if self._number else state.slots.free
        limit = max(0, min(state.slots.free + self._handoff.outstanding, limit, defaults.CLAIM_MOST))
        if limit and self._capacity is not None:
            self._build_claim.refresh()
            self._plan = self._capacity.plan(limit, self._number)
            return self._plan.limit
        return limit

    async def _request(self, ended: list[Ended], limit: int) -> None:
        """Settle these outcomes, claim up to `limit` jobs, and start them."""
        state, handoff = self._state, self._handoff
        limit = self._begin_claim(limit)
        sent = self._now()
        was_outstanding, claim_id = handoff.outstanding, handoff.claim_begins(sent)
        reserved = limit or int(was_outstanding)
        state.slots.take(reserved)
        state.unconfirmed.sent[self._number] = ended
        taken = 0
        try:
            if limit:
                state.demand.claim_begins()
            outcomes = [outcome for _, outcome in ended]
            settled, claimed, outstanding = await self._call(outcomes, limit, claim_id, was_outstanding)
            taken = len(claimed.records)
        except BaseException:
            state.unconfirmed.put_back(ended)
            raise
        finally:
            state.slots.release(reserved - taken)
            del state.unconfirmed.sent[self._number]
        self._settler.settled(ended, settled, claimed.records)
        if limit:
            state.demand.pace(full=taken >= limit)
            if self._capacity is not None and self._plan is not None and not self._number:
                self._capacity.answered(self._plan, claimed.records)
            if self._number == 0:
                self._batches.looked(claimed.records)
        if taken:
            await self._start(claimed.records, sent, more=taken >= limit or self._number > 0)
            self._end_claim()
        elif limit:
            await self._found_nothing(claimed.next_in, outstanding)
        else:
            self._end_claim()

    def _begin_claim(self, limit: int) -> int:
        """Count this request if it may bring jobs. Returns how many: none while a suspect waits or runs alone."""
        self._end_claim()  # a failed request may have left it open
        begin, mine = self._trials.census.begin_claim, self._trials
        if limit and begin(mine):
            self._claims = True
            return limit
        self._claims = self._handoff.outstanding and begin(mine, withdraws=True)
        return 0

    def _end_claim(self) -> None:
        if self._claims:
            self._claims = False
            self._trials.census.end_claim(self._trials)

    async def _start(self, records: Sequence[Record], sent: float, more: bool) -> None:
        self._handoff.claim_ended(False)
        self._state.demand.brought(more)
        for first in range(0, len(records), START):
            if first:
                await asyncio.sleep(0)  # other tasks of the loop get their turn
            self._executor.start_all(records[first : first + START], sent)

    async def _found_nothing(self, next_in: float | None, outstanding: bool) -> None:
        state, demand = self._state, self._state.demand
        had_jobs = demand.nothing()
        self._handoff.claim_ended(outstanding)
        self._end_claim()
        if outstanding and not self._handoff.outstanding:
            return  # a job has already arrived for the request
        if self._plan is not None and self._plan.narrow:
            return  # the next claim includes other tasks
        if had_jobs and not self._included_system_queue:
            return  # the next claim includes the system queue
        if self._number:
            demand.leave_to_first()
        else:
            await demand.wait(self._poll, next_in, busy=bool(state.unconfirmed.waiting) or not state.claiming)

    async def _call(
        self, outcomes: list[Outcome], limit: int, claim_id: str, was_outstanding: bool
    ) -> tuple[Sequence[Settled], Claimed, bool]:
        """Settle and claim in one trip, and repeat it while the storage is away, which is safe by law 10. Any other
        error may concern one outcome: then each outcome is settled alone, and a refused one gets a reason.

        `was_outstanding`: this call ends a hand-off request. The third value says whether it left a new request."""
        settled: Sequence[Settled] | None = None if outcomes else []
        claimed_once = one_by_one = False
        answer: tuple[Sequence[Settled], Claimed]
        while True:
            # Build the claim again for each try: the jobs that run here have changed, and a claim must not return them.
            claim = self._claim(limit, claim_id, was_outstanding)
            try:
                if one_by_one and settled is None:
                    settled = await self._settle_one_by_one(outcomes)
                if self._fused is not None and claim is not None and not one_by_one:
                    claimed_once = True
                    answer = await self._fused.settle_claim(outcomes, claim)
                else:
                    # Do not repeat a settle that was answered: another worker may have claimed the job since.
                    settled = await self._storage.settle(outcomes) if settled is None else settled
                    claimed_once = claim is not None
                    answer = settled, NOTHING if claim is None else await self._storage.claim(claim)
            except TreadleError as error:
                if outcomes and not one_by_one and not isinstance(error, PASSING):
                    one_by_one = True
                    continue
                if not isinstance(error, StorageError):
                    raise
                if settled and all(result.status == "refused" for result in settled):
                    one_by_one, settled = False, None  # the storage refuses everything: no outcome is to blame
                await self._outage.failed(self._label, error)
                # A stopping worker repeats a claim whose answer was lost: the jobs may be leased to it, and it releases
                # them. A hand-off request expires by itself.
                if not self._state.claiming:
                    limit, was_outstanding = limit if claimed_once else 0, False
            else:
                self._outage.answered(self._label)
                return *answer, limit > 0 and _leaves_request(claim)

    def _claim(self, limit: int, claim_id: str, was_outstanding: bool) -> Claim | None:
        claim = self._build_claim(limit, self._number, claim_id, self._plan) if limit else None
        if claim is None and was_outstanding:
            claim = self._handoff.withdrawal()
        self._included_system_queue = (
            claim is not None and claim.queues != () and claim.queues[0][0] == defaults.SYSTEM_QUEUE
        )
        return claim

    async def _settle_one_by_one(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        """Settle each outcome alone. Raises transient errors, and the error of a storage that refuses every call."""
        ids = [outcome.id for outcome in outcomes]
        settled: list[Settled] = []
        await self._storage.get(ids)  # raises if the storage refuses this too: then no outcome is to blame
        for outcome in outcomes:
            try:
                settled += await self._storage.settle([outcome])
            except PASSING:
                raise
            except TreadleError as error:
                settled.append(Settled("refused", str(error)))
        if all(result.status == "refused" for result in settled):
            await self._storage.get(ids)
        return settled


def _leaves_request(claim: Claim | None) -> bool:
    """Whether a claim that finds nothing leaves a hand-off request."""
    return claim is not None and claim.hand_off is not None and claim.hand_off[1] > 0
