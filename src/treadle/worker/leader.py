"""Elects one worker of a fleet, the leader, which prunes, redrives and ticks schedules. It holds a lease on one row.

Correctness does not depend on there being one leader: any worker may do these duties, twice or late. A leader that
stalled learns at its next heartbeat that it was replaced. Its writes in between are fenced like all others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, Literal

import msgspec
from msgspec import Struct

from treadle.concurrency.uncut import UncutCalls
from treadle.core import defaults
from treadle.core.claim_ids import worker_name
from treadle.core.errors import UNREADABLE, BadOption, StorageError
from treadle.core.model import Claim, LeaseRenewal, NewJob, Outcome, Presence, Record, State
from treadle.storage.contract import Storage

log = logging.getLogger("treadle")

ID: Final = "treadle:leader"
TASK: Final = "treadle.leader"  # claimed only by id: the claims of dispatchers do not name this task
TRIES: Final = 3  # attempts to claim a row that other workers change meanwhile
BEATS: Final = 4  # heartbeats in the `defaults.LEADER` s after which a silent leader is replaced

Role = Literal["leader", "follower", "auto"]
ROLES: Final[tuple[Role, ...]] = ("leader", "follower", "auto")


class LeaderDuties(Struct, frozen=True):
    """The duties of the leader, stored as the note of its row. Followers do other duties themselves."""

    ticks: tuple[str, ...] = ()  # tasks of the schedules it ticks
    redrives: tuple[str, ...] = ()  # tasks whose failed jobs it reopens
    text: str = "leads"  # for people who read the row


def role_of(value: str | None) -> Role | None:
    """Check the argument `role`. Raises BadOption."""
    if value is None or value in ROLES:
        return value
    raise BadOption("role", f"expected leader, follower or auto, found {value!r}")


class LeaderElection:
    """One worker's part in the election, by its role.

    None      no election: the worker does the duties itself
    leader    always does the duties; takes the row unless another worker with this role holds it
    auto      does the duties while it holds the row; takes the row if it is free
    follower  as auto, but takes the row only after `defaults.LEADER` s without a leader, by the storage's clock
    """

    def __init__(
        self,
        role: Role | None,
        claim_id: str,
        storage: Storage,
        presence: Callable[[], Presence],
        duties: Callable[[], LeaderDuties],
        on_change: Callable[[], None],
    ) -> None:
        self._role, self._claim_id = role, f"{claim_id}-{role}"
        self._storage, self._presence, self._duties, self._on_change = storage, presence, duties, on_change
        self._version: int | None = None  # version of the row, while this worker holds it
        self._unanswered: Claim | None = None  # a claim of the row that the storage may have carried out
        self._leaders: LeaderDuties | None = None  # the duties of the current leader; None: not read yet
        self.turn = 0  # grows whenever a result of the methods below may have changed

    def is_leader(self) -> bool:
        """Whether this worker does the duties of the leader."""
        return self._role in (None, "leader") or self._version is not None

    def ticks(self, task: str) -> bool:
        return self.is_leader() or (self._leaders is not None and task not in self._leaders.ticks)

    def redrives(self, tasks: Iterable[str]) -> list[str]:
        if self.is_leader():
            return list(tasks)
        return [] if self._leaders is None else [task for task in tasks if task not in self._leaders.redrives]

    async def run(self, calls: UncutCalls, answered: Callable[[str], None]) -> None:
        """Renew the lead, or wait for it."""
        while True:
            again = await calls.make(self.look())
            answered("lead")
            await asyncio.sleep(again)

    async def look(self) -> float:
        """Renew the lead, or take it if possible. Returns the seconds until the next look."""
        if self._version is not None:
            if await self._renew(self._version):
                return defaults.LEADER / BEATS
            self._version = None
            self._mark_changed()
            log.info("worker %s is not the leader any more", self._presence().worker)
        claim = Claim(
            worker=self._claim_id,
            queues=((defaults.SYSTEM_QUEUE, 1),),
            tasks={TASK: (1, None)},
            limit=1,
            lease=defaults.LEADER,
            ids=(ID,),
        )
        next_in: float | None = None
        for _ in range(TRIES):
            self._unanswered = claim
            claimed = await self._storage.claim(claim)
            if claimed.records:
                await self._take(claimed.records[0])
                return defaults.LEADER / BEATS
            self._unanswered = None
            next_in = claimed.next_in
            if not await self._open_way():
                break
        return min(defaults.POLL, max(next_in or defaults.POLL, defaults.POLL / BEATS))

    async def _take(self, row: Record) -> None:
        renewed = await self._renew(row.version)
        self._unanswered = None
        if renewed:
            self._version = row.version
            self._mark_changed()
            log.info("worker %s is the leader now: it prunes, redrives and ticks schedules", self._presence().worker)

    async def _renew(self, version: int) -> bool:
        """Renew the lead and store its duties; returns whether this worker still holds it. A note that could not be
        stored goes with the next renewal."""
        renewal = LeaseRenewal(ID, version, note=msgspec.json.encode(self._duties()).decode())
        return ID not in (await self._storage.heartbeat(self._presence(), [renewal], defaults.LEADER)).lost

    async def _open_way(self) -> bool:
        """Read the row. Create the leader's row if it is missing, and release it if this worker may take it. Returns
        whether to claim again."""
        [row] = await self._storage.get([ID])
        # A follower waits for a leader that starts at the same time as long as for one that has fallen silent.
        wait = defaults.LEADER if self._role == "follower" else 0.0
        if row is None:
            # With `function_done` the row passes limits and pauses, which must not prevent an election. A new row that
            # has it cannot have a delay.
            queue, done = defaults.SYSTEM_QUEUE, not wait
            new = NewJob(id=ID, task=TASK, queue=queue, delay=wait, function_done=done, lease=defaults.LEADER)
            await self._storage.enqueue([new])
            return not wait
        self._read(row)
        if not self._may_free(row):
            return False
        delay = wait if row.state.final else 0.0
        await self._storage.settle(
            [Outcome(id=ID, version=row.version, state=State.READY, delay=delay, function_done=True)]
        )
        return not delay

    def _may_free(self, row: Record) -> bool:
        if row.state.final:  # the leader has left, or the row was cancelled: neither ends the election
            return True
        if row.state is State.RUNNING:
            return self._role == "leader" and not (row.worker or "").endswith("-leader")
        if row.queue_position is None:  # a follower created it with a delay
            return self._role != "follower"
        return not row.function_done  # a pause may hold it back

    def _read(self, row: Record) -> None:
        duties = LeaderDuties()
        with suppress(*UNREADABLE):
            duties = msgspec.json.decode(row.note or "{}", type=LeaderDuties)
        if duties != self._leaders and row.state is State.RUNNING:
            self._leaders = duties
            self._mark_changed()

    def _mark_changed(self) -> None:
        self.turn += 1
        self._on_change()

    async def leave(self) -> None:
        """End the lead, so that no worker waits for the lease to expire, and no row stays queued when the whole fleet
        has stopped. Never raises StorageError."""
        version, self._version = self._version, None
        claim, self._unanswered = self._unanswered, None
        with suppress(StorageError):
            if version is None and claim is not None:  # repeated, it returns the row that it has claimed
                version = next((row.version for row in (await self._storage.claim(claim)).records), None)
            if version is not None:
                await self._storage.settle([Outcome(id=ID, version=version, state=State.SUCCEEDED)])


def leader_of(row: Record | None) -> str | None:
    """The name of the leader, from the row; None: there is no leader."""
    return None if row is None or row.state is not State.RUNNING else worker_name(row.worker)
