"""`async with current().lock(name) as number`: only one job is in the block at a time, first come, first served.

A lock is an entry of the history: it has the turn of the job, its number as soon as the job has the lock, and whether
the job has left it. The job has the lock until it leaves the block, over all runs. An error that leaves the function
does not leave the block: the next attempt continues inside of it. Before a turn is ended, it is stored that the block
was left; a run that dies in between is followed by one that ends the turn again.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import count
from types import TracebackType
from typing import Final, NoReturn

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from treadle.core import ids
from treadle.core.errors import BadStep, KeyHeld, StepMismatch
from treadle.core.model import Record
from treadle.durable.checkpoints import LEAVING, LEFT, WAIT, Checkpoint, StepRequest, check_name
from treadle.durable.pending import Pending
from treadle.durable.step_taker import StepTaker
from treadle.durable.steps import FOREIGN_LOCK, Durable
from treadle.workflow import locks
from treadle.workflow.locks import LOCK, LockHeader

log = logging.getLogger("treadle")

LOCKED: Final = "lock:"  # prefix of the names of these entries
PAUSE: Final = 0.01  # s before a turn is sent again, because another transaction locks the row of the lock
AGAIN: Final = "this job has the lock, or waits for it: leave that block first; an asyncio.Lock orders tasks of one job"


class Turn(Struct, frozen=True):
    """A turn of this job. `ahead`: the turn for which it waits; "": the job has the lock."""

    id: str
    lock: str
    number: int
    ahead: str


class LockWait:
    """The wait for a lock."""

    kind = WAIT

    def __init__(self, run: Durable, request: StepRequest, name: str) -> None:
        self._run, self.request, self._name = run, request, name

    async def look(self) -> Pending | None:
        """See `Wait`."""
        run, request, row, turn = self._run, self.request, self._run.run.record, None
        entry = run.checkpoints.entries.get(request.key)
        if entry is not None and entry.has_value and (entry.exit or is_own(run, entry)):
            return None
        if entry is not None and not entry.lock:
            raise StepMismatch(row.id, request.key, request.after, "another step of that name")
        if entry is not None:
            [stored] = await run.backend.get([entry.lock])
            if is_own(run, entry):
                turn = await self._present(stored)
            elif stored is not None:
                await self._end_earlier(stored)
        if turn is None:
            async with run.backend.joining(self._name):
                turn = await self._join()
        joined = request.entry_of(lock=turn.id, row=turn.lock)
        if turn.ahead:
            run.checkpoints.keep(request, joined)
            return Pending((turn.ahead,))
        run.checkpoints.keep(request, replace(joined, value=Raw(msgspec.json.encode(turn.number))))
        return None

    async def _present(self, stored: Record | None) -> Turn | None:
        """The turn with this row; None: it has ended, as an operator has cancelled it."""
        lock = None if stored is None else locks.lock_of(stored.job)
        if stored is None or stored.state.final or lock is None:
            return None
        number = lock.number
        if not number:
            [first] = await self._run.backend.get([lock.row])
            number = 0 if first is None else locks.first_number(first)
        # Its job has not ended. If it waits for one ending, it is that one.
        return Turn(stored.id, lock.row, number, locks.ahead_of(stored) if stored.pending > 1 else "")

    async def _end_earlier(self, stored: Record) -> None:
        """End a turn that this job had before it was reopened: each of the two would wait for the other."""
        lock = locks.lock_of(stored.job)
        if lock is not None and lock.job == self._run.run.record.id and not stored.state.final:
            await self._run.backend.settle([locks.given_up(stored)])

    # --- taking a turn

    async def _join(self) -> Turn:
        """A new turn, or the one that a run stored before it died. Raises Defer."""
        run = self._run
        stem = locks.turn_stem(run.run.record) + ids.digest(run.round.number, self.request.key)[:12]
        for number in count():
            turn = await self._turn(f"{stem}-{number}")
            if turn is not None:
                return turn
        raise AssertionError

    async def _turn(self, id: str) -> Turn | None:
        """The turn of this id; None: it has ended."""
        backend, row = self._run.backend, self._run.run.record
        while True:
            lock_id = f"{LOCK}row:{ids.nonce()}"
            turn = locks.turn_row(id, row, LockHeader(self._name, row.id, lock_id))
            try:
                stored, lock = await backend.store_all([turn, locks.lock_row(lock_id, row, self._name, id)])
            except KeyHeld as held:
                lock_id = held.id
            else:
                return None if stored.state.final else Turn(id, lock.id, locks.first_number(lock), "")
            known, existing = await backend.get([lock_id, id]) if lock_id else (None, None)
            if existing is not None:
                return await self._present(existing)
            if known is None or not locks.is_lock_row(known, self._name):
                hidden = "its row is in another queue, to which the token of this worker has no access"
                self._wait_for_others("a row of another program has its key" if lock_id else hidden)
            if known.state.final:
                continue
            if (joined := await self._append(known, id)) is not None:
                return joined

    async def _append(self, known: Record, id: str) -> Turn | None:
        """Store a turn after the last one; None: another one is the last now."""
        backend, row = self._run.backend, self._run.run.record
        last, ahead = locks.last_turn(known), ""
        if last.turn:
            [before] = await backend.get([last.turn])
            if before is not None and not before.state.final:
                await self._end_earlier(before)
                ahead = before.id
        lock = LockHeader(self._name, row.id, known.id, last.number + 1)
        turn = locks.turn_row(id, row, lock, ahead)
        [answer] = await backend.settle([locks.appended(known, turn, lock.number)])
        if answer.status == "applied":
            return Turn(id, known.id, lock.number, ahead)
        if answer.status == "refused" and not answer.again:
            self._wait_for_others(answer.reason or "the storage refuses the turn")
        if answer.again:
            await asyncio.sleep(PAUSE)
        return None

    def _wait_for_others(self, why: str) -> NoReturn:
        raise self._run.kept_from(f"the lock {self._name!r}: {why}", FOREIGN_LOCK)

    # --- the other methods of a wait

    def value(self) -> int:
        """See `Wait`."""
        value = self._run.checkpoints.entries[self.request.key].value
        assert isinstance(value, Raw)
        return msgspec.json.decode(value, type=int)

    async def conclude(self) -> None:
        """Nothing is to be done when the job has the lock."""

    def lose(self) -> None:
        """A lock takes part in no race."""

    async def drop(self) -> None:
        """The function waits no longer: the turn ends with the one before it."""
        entry = self._run.checkpoints.entries.get(self.request.key)
        [stored] = await self._run.backend.get([entry.lock]) if entry is not None and entry.lock else [None]
        if stored is not None and not stored.state.final:
            await self._run.backend.settle([locks.given_up(stored)])


def is_own(run: StepTaker, entry: Checkpoint) -> bool:
    """Whether the turn of this entry is of this job since it was reopened last. A fork has the entries of another job,
    and a cleanup those of the job that has ended."""
    return entry.lock.startswith(locks.turn_stem(run.run.record))


async def leave(durable: Durable, name: str) -> None:
    """Leave a lock for a function in another language, which has it. Raises BadStep."""
    if name not in durable.locks:
        raise BadStep(name, "this job does not have the lock at this point")
    lock = Lock(durable, name)
    lock._request = durable.locks.pop(name)
    await lock._leave()


class Lock:
    """`async with current().lock(name) as number`, or `with current().sync.lock(name) as number`."""

    def __init__(self, durable: Durable, name: str) -> None:
        check_name(name)
        self._durable, self._name = durable, name
        self._request: StepRequest  # made when the block is entered

    def wait(self) -> LockWait:
        """The wait for the lock, in its place in the order of steps. Raises BadStep."""
        run = self._durable
        run.checkpoints.decide(run.checkpoints.here())  # it may have caught the error that has left an earlier block
        if self._name in run.locks:
            raise BadStep(self._name, AGAIN)
        self._request = run.locks[self._name] = run.asked(f"{LOCKED}{self._name}")
        return LockWait(run, self._request, self._name)

    async def __aenter__(self) -> int:
        wait = self.wait()
        try:
            number: int = await self._durable.over(wait)
        except BaseException:
            self._durable.locks.pop(self._name, None)
            raise
        return number

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._durable.locks.pop(self._name, None)
        if error is None:
            await self._leave()
        else:
            self._durable.checkpoints.left_by_error(self._request, self._leave)

    def __enter__(self) -> int:
        wait, run = self.wait(), self._durable
        try:
            number: int = run.wait_here(run.over_here(wait))
        except BaseException:
            run.locks.pop(self._name, None)
            raise
        return number

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._durable.locks.pop(self._name, None)
        if error is None:
            self._durable.wait_here(self._leave())
        else:
            self._durable.checkpoints.left_by_error(self._request, self._leave)

    async def _leave(self) -> None:
        """The block has come to its end, or the function has caught the error that left it. Store that, and then end
        the turn."""
        run, key = self._durable, self._request.key
        run.stay(key)
        entry = run.checkpoints.entries.get(key)
        if entry is None or not is_own(run, entry) or entry.exit == LEFT:
            return
        try:
            if entry.exit != LEAVING:
                run.checkpoints.keep(self._request, replace(entry, exit=LEAVING), is_last=True)
                await run.backend.save(run.run)
            await self._end(entry)
        except BaseException:
            run.checkpoints.left_by_error(self._request, self._leave)
            raise

    async def _end(self, entry: Checkpoint) -> None:
        run = self._durable
        [lock] = await run.backend.get([entry.row])
        outcomes = [locks.ended(entry.lock)]
        if lock is not None and not lock.state.final:
            last = locks.last_turn(lock)
            if last.turn == entry.lock:
                outcomes.append(locks.freed(lock, last))
        await run.backend.settle(outcomes)
        run.checkpoints.keep(self._request, replace(entry, exit=LEFT), is_last=True)
