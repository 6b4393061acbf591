"""Gives suspects to runners in other languages: each one alone, to a runner that holds no other lease. See
`policy/guilt.py`.

A lease that such a runner loses counts towards `max_lost`. A run that this server cannot know to be alone never counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from treadle.core.claim_ids import worker_name
from treadle.core.events import was_lost
from treadle.core.model import Claim, LeaseRenewal, Outcome, Pairs, Presence, Record, State
from treadle.core.query_model import Query
from treadle.policy import attempts, guilt, judge
from treadle.storage import pages
from treadle.storage.contract import Storage

WAITS: Final = 3  # times that a suspect waits for a runner without jobs; then it runs next to others
PAGE: Final = 1_000  # running rows of one read
PAGES: Final = 20  # reads to find the other jobs of a runner
SERVER: Final = Presence(worker="treadle server", gone=True)  # not listed: runners send heartbeats of their own


class RunnerTrials:
    """The suspects that this server has given to runners. It keeps them in memory, so each runner must claim from one
    server."""

    def __init__(self, storage: Callable[[], Storage]) -> None:
        self._storage = storage
        self._given: dict[str, tuple[str, int]] = {}  # runner -> the suspect that it runs alone

    async def occupies(self, claim_id: str) -> bool:
        """Whether the runner of this claim still runs a suspect that another of its claims has returned."""
        suspect = self._given.get(worker_name(claim_id))
        if suspect is None:
            return False
        [row] = await self._storage().get([suspect[0]])
        if row is not None and (row.state, row.version) == (State.RUNNING, suspect[1]):
            return row.worker != claim_id
        self._given.pop(worker_name(claim_id), None)
        return False

    async def chosen(self, ask: Claim, rows: Sequence[Record]) -> tuple[Record, ...]:
        """The claimed rows that go to the runner: all of them, or one suspect. The others are released."""
        suspects = [row for row in rows if guilt.is_suspect(row)]
        if not suspects:
            return tuple(rows)
        runner = worker_name(ask.worker)
        known = self._given.get(runner)
        first = next((row for row in suspects if (row.id, row.version) == known), suspects[0])
        if ask.running or await self._holds_others(runner, {row.id for row in rows}):
            return await self._put_off(ask, rows, suspects)
        await self._release([row for row in rows if row is not first])
        lost = attempts.losses(first) if was_lost(first) else ()
        if not await self._noted(ask, first, (*guilt.trial_note(first), *lost)):
            return ()
        self._given[runner] = first.id, first.version
        return (first,)

    async def _put_off(self, ask: Claim, rows: Sequence[Record], suspects: Sequence[Record]) -> tuple[Record, ...]:
        """The runner has other jobs: leave the suspects to others for some time, but not for ever."""
        kept, later = [row for row in rows if row not in suspects], list[Outcome]()
        for row in suspects:
            waits = guilt.guilt_of(row).waits
            if waits < WAITS:
                later.append(judge.released(row, ask.lease * 2**waits, guilt.plain_note(row, waited=True)))
            elif await self._noted(ask, row, guilt.sharing_note(row)):
                kept.append(row)
        await self._storage().settle(later)
        return tuple(kept)

    async def _holds_others(self, runner: str, but: set[str]) -> bool:
        """Whether this runner holds the lease of another job; True if there are too many running jobs to know."""
        read = 0
        async for page in pages(self._storage(), Query(state=(State.RUNNING,), order="started", limit=PAGE)):
            if any(row.id not in but and worker_name(row.worker or "") == runner for row in page.records):
                return True
            read += 1
            if read == PAGES:
                return page.cursor is not None
        return False

    async def _release(self, rows: Sequence[Record]) -> None:
        if rows:
            await self._storage().settle([judge.released(row) for row in rows])

    async def _noted(self, ask: Claim, row: Record, note: Pairs) -> bool:
        """Store a note with the lease of this claim. Returns whether it is stored; if not, the job is released."""
        renewal = LeaseRenewal(row.id, row.version, checkpoints=note)
        lease = row.job.lease or (ask.tasks or {}).get(row.job.task, (None, None))[1] or ask.lease
        answer = await self._storage().heartbeat(SERVER, [renewal], lease)
        if row.id in answer.unsaved:
            await self._release([row])
        return row.id not in answer.lost and row.id not in answer.unsaved
