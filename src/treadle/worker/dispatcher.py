"""One request after the other: settle what has ended, claim for the free slots, start what came. The hot loop.

Whatever ends during a request rides on the next one; there is no linger timer (0.5-2 ms of linger cost 20-40 %).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from treadle.core import defaults
from treadle.core.model import Claimed, Outcome, Settled
from treadle.errors import StorageError, StorageFull, StorageUnavailable, TreadleError
from treadle.storage.contract import DearTrips, Fused, OneByOne, Storage
from treadle.worker.claim_builder import ClaimBuilder
from treadle.worker.executor import Executor
from treadle.worker.handoff import HandOff
from treadle.worker.parts import WorkerConfig, WorkerParts
from treadle.worker.settler import Settler
from treadle.worker.state import RunningJob

NOTHING = Claimed()
START = 64  # jobs started in one turn of the loop: what 128 no-ops take together held it for 5 ms
AT_LEAST = 0.001  # s between two looks at an empty line: what is due at this very moment may not be claimable yet
DISPATCHERS = 2  # one request under way while the other half runs: +50 % on a network storage


def dispatchers_for(config: WorkerConfig, storage: Storage) -> int:
    """How many dispatchers a worker with these settings has."""
    return 1 if config.concurrency == 1 or config.ordered or isinstance(storage, OneByOne) else DISPATCHERS


def share_of(parts: WorkerParts) -> tuple[int, bool]:
    """The most jobs that one dispatcher claims at once; whether the second is spare: where trips are dear and one can
    carry all, the first does all the work there is."""
    storage, concurrency = parts.storage, parts.config.concurrency
    if isinstance(storage, DearTrips) and concurrency <= storage.one_trip_up_to:
        return concurrency, True
    return -(-concurrency // dispatchers_for(parts.config, storage)), False


class Dispatcher:
    """Several of these may share one worker's slots; never beyond the free ones."""

    def __init__(
        self, number: int, parts: WorkerParts, ask: ClaimBuilder, handoff: HandOff, executor: Executor, settler: Settler
    ) -> None:
        self._number, self._share, self._spare = number, *share_of(parts)
        self._state, self._storage, self._batches = parts.state, parts.storage, parts.batches
        self._outage, self._poll, self._label = parts.outage, parts.config.poll, f"pump {number}"
        self._ask, self._handoff, self._executor, self._settler = ask, handoff, executor, settler
        self._fused = parts.storage if isinstance(parts.storage, Fused) else None
        self._whole = True  # whether the last claim asked for our own queue too

    async def run(self) -> None:
        """Until the worker claims no more and all that ran is settled."""
        state = self._state
        while True:
            outs: list[tuple[RunningJob, Outcome]] = []
            if not self._rests():
                outs, state.outcomes = state.outcomes, []
            room = self._room()
            if outs or room or self._handoff.stands:
                await self._trip(outs, room)
                await asyncio.sleep(0)  # a storage that answers at once must not hold the loop for the whole drain
            elif state.stopping and not state.claiming and not state.running and not state.asking:
                return
            else:
                state.wake.clear()
                if (self._rests() or not state.outcomes) and not self._room():
                    await state.wake.wait()

    def _rests(self) -> bool:
        """Whether all is left to the first pump: the line is empty, and it is not under way. Two trips at once for one
        job would only wait for each other (pick-up on Redis, p50: 1.5 ms, not 1.2)."""
        state = self._state
        if not self._number or not state.claiming:
            return False
        return 0 not in state.settling if state.idle else self._spare

    def _room(self) -> int:
        state = self._state
        if not state.claiming or state.pause:
            return 0
        if self._rests() or (self._number and state.idle and not state.hinted):
            return 0
        share = self._share
        if self._batches.open:
            # The first pump alone claims items, and those that wait take no slot. With half of the slots, beside
            # claims of the other pump that bring nothing, a call of 50 took ten trips.
            share = 0 if self._number else state.free
        return max(0, min(state.free + self._handoff.stands, share, defaults.CLAIM_MOST))

    async def _trip(self, outs: list[tuple[RunningJob, Outcome]], room: int) -> None:
        state, handoff = self._state, self._handoff
        stood, ticket = handoff.stands, handoff.ticket()
        kept = room or int(stood)
        state.free -= kept
        state.settling[self._number] = outs
        taken = 0
        try:
            if room:
                state.hinted = False
            settled, claimed, standing = await self._call([out for _, out in outs], room, ticket, stood)
            taken = len(claimed.records)
        except BaseException:
            state.outcomes[:0] = outs  # not known to be stored: to be settled again, which law 10 makes safe
            raise
        finally:
            state.free += kept - taken
            del state.settling[self._number]
        self._settler.settled(outs, settled, claimed.records)
        if room:
            self._note_pace(taken >= room)
            if self._number == 0:  # the others ask for no items
                self._batches.looked(claimed.records)
        if taken:
            handoff.answered(False)
            state.flowing = True
            if state.idle and (taken >= room or self._number):
                state.idle = False  # there may be more than the first pump can take
                state.wake.set()
            for at in range(0, taken, START):
                if at:
                    await asyncio.sleep(0)  # what else is to be done in the loop gets its turn
                self._executor.start_all(claimed.records[at : at + START])
        elif room:
            flowed, state.flowing = state.flowing, False
            handoff.answered(standing)
            if standing and not handoff.stands:
                return  # it has brought a job already
            if not flowed or self._whole:  # else our own queue was left out of that claim: look again
                await self._wait_for_work(claimed.next_in)

    async def _call(
        self, outs: list[Outcome], room: int, ticket: str, stood: bool
    ) -> tuple[Sequence[Settled], Claimed, bool]:
        """Settle and claim in one trip, again and again while the storage is away: law 10 makes that safe. Any other
        refusal may concern one outcome: they are settled one by one then, and those refused say why.

        `stood`: there is an ask to be withdrawn, if we claim no more. Answers also whether there is one now."""
        settled: Sequence[Settled] | None = None if outs else []
        asked = apart = False
        answer: tuple[Sequence[Settled], Claimed]
        while True:
            # Said anew at each try: what we hold has changed meanwhile, and a job of ours must not come back to us.
            ask = self._ask(room, self._number, ticket) if room else self._handoff.withdrawal() if stood else None
            self._whole = ask is not None and ask.queues != () and ask.queues[0][0] == defaults.OWN_QUEUE
            try:
                if apart and settled is None:
                    settled = await self._settle_apart(outs)
                if self._fused is not None and ask is not None and not apart:
                    asked = True
                    answer = await self._fused.settle_claim(outs, ask)
                else:
                    # Once answered it is not asked again: who came after may have claimed the job meanwhile.
                    settled = await self._storage.settle(outs) if settled is None else settled
                    asked = ask is not None
                    answer = settled, NOTHING if ask is None else await self._storage.claim(ask)
            except TreadleError as error:
                if outs and not apart and not isinstance(error, StorageUnavailable | StorageFull):
                    apart = True
                    continue
                if not isinstance(error, StorageError):
                    raise
                if settled and all(each.status == "refused" for each in settled):
                    apart, settled = False, None  # it refuses everything: no outcome is to blame
                await self._outage.failed(self._label, error)
                # What was claimed by a call whose answer was lost is ours all the same: ask on, to hand it back.
                if not self._state.claiming:
                    room, stood = room if asked else 0, False  # an ask ends by itself
            else:
                self._outage.answered(self._label)
                return *answer, room > 0 and ask is not None and ask.hand is not None

    async def _settle_apart(self, outs: Sequence[Outcome]) -> list[Settled]:
        """Each outcome by itself. Raises StorageUnavailable, StorageFull, and what a storage says that refuses all."""
        ids, settled = [out.id for out in outs], list[Settled]()
        await self._storage.get(ids)  # while it refuses this too, no outcome is to blame
        for out in outs:
            try:
                settled += await self._storage.settle([out])
            except (StorageUnavailable, StorageFull):
                raise
            except TreadleError as error:
                settled.append(Settled("refused", str(error)))
        if all(each.status == "refused" for each in settled):
            await self._storage.get(ids)
        return settled

    def _note_pace(self, full: bool) -> None:
        """Who took as much as it could may be behind; who could have taken more is not."""
        if not full:
            self._state.behind_since = None
        elif self._state.behind_since is None:
            self._state.behind_since = self._state.loop.time()

    async def _wait_for_work(self, next_in: float | None) -> None:
        """The line is empty: until a hint, the next due moment, or the poll that nets lost hints."""
        state = self._state
        state.idle = True
        if self._number:
            # The first pump waits for all, until a claim finds more than it can take. It may have gone to sleep for
            # want of the slots this claim had reserved, and then nobody would look at the clock.
            if not state.watched:
                state.wake.set()
            return
        if state.outcomes or state.hinted or not state.claiming:
            state.hinted = False
            return
        wait = self._poll if next_in is None else min(self._poll, max(next_in, AT_LEAST))
        state.wake.clear()
        timer = asyncio.get_running_loop().call_later(wait, state.wake.set)
        state.watched = True
        try:
            await state.wake.wait()
        finally:
            state.watched = False
            timer.cancel()
