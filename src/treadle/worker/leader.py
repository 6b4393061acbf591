"""Who of many workers tends: prunes, redrives, ticks schedules. Roles, and a lease on a row that stands for the lead.

Without it each worker of a fleet would do that part, which is safe and, with a hundred of them, wasted. Nothing rests
on there being one leader: all tending may be done by anybody, twice, or late. A leader that stalls finds out at its
next heartbeat that it was replaced, and what it did in between was fenced like everything else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, Literal

import msgspec
from msgspec import Struct

from treadle.core import defaults
from treadle.core.model import Claim, Hold, NewJob, Outcome, Presence, Record, State
from treadle.errors import UNREADABLE, BadOption, StorageError
from treadle.storage.contract import Storage

log = logging.getLogger("treadle")

ID: Final = "treadle:leader"
TASK: Final = "treadle.leader"  # claimed by its id and by nobody's pump: no worker names this task
TRIES: Final = 3  # looks at a row that others change meanwhile
BEATS: Final = 4  # heartbeats in the time of silence that ends a lead

Role = Literal["leader", "follower", "auto"]
ROLES: Final[tuple[Role, ...]] = ("leader", "follower", "auto")


class LeaderDuties(Struct, frozen=True):
    """What a leader tends, as the note of its row says; whatever else there is, followers tend themselves."""

    ticks: tuple[str, ...] = ()  # tasks of the schedules it ticks
    redrives: tuple[str, ...] = ()  # tasks of which it reopens failed jobs
    text: str = "leads"  # for people who look at the row


def role_of(value: str | None) -> Role | None:
    """A role as it was given. Raises BadOption."""
    for role in ROLES:
        if value == role:
            return role
    if value is not None:
        raise BadOption("role", f"expected leader, follower or auto, found {value!r}")
    return None


class LeaderElection:
    """One worker's view of who leads.

    None      there are no roles: it tends
    leader    tends always; holds the row if no other leader does, and takes it from whoever stood in
    auto      tends if it gets the row: whoever is first
    follower  tends once no leader was heard of for `defaults.LEADER` s, by the storage's clock
    """

    def __init__(
        self,
        role: Role | None,
        ticket: str,
        storage: Storage,
        presence: Callable[[], Presence],
        tended: Callable[[], LeaderDuties],
        changed: Callable[[], None],
    ) -> None:
        self._role, self._ticket = role, f"{ticket}-{role}"
        self._storage, self._presence, self._tended, self._changed = storage, presence, tended, changed
        self._version: int | None = None  # of the row, while we hold it
        self._leaders: LeaderDuties | None = None  # what the one who leads tends, once we know
        self.turn = 0  # grows whenever any answer below may have changed

    def tends(self) -> bool:
        """Whether this worker does what one for all can do."""
        return self._role in (None, "leader") or self._version is not None

    def ticks(self, task: str) -> bool:
        return self.tends() or (self._leaders is not None and task not in self._leaders.ticks)

    def redrives(self, tasks: Iterable[str]) -> list[str]:
        if self.tends():
            return list(tasks)
        return [] if self._leaders is None else [task for task in tasks if task not in self._leaders.redrives]

    async def run(self, answered: Callable[[str], None]) -> None:
        """Hold on to the lead, or wait for it."""
        while True:
            again = await self.look()
            answered("lead")
            await asyncio.sleep(again)

    async def look(self) -> float:
        """Hold on to the lead, or see whether it is to be had; answers in how many seconds to look again."""
        if self._version is not None:
            if await self._holds(self._version):
                return defaults.LEADER / BEATS
            self._version = None
            self._turn()
            log.info("worker %s does not lead any more", self._presence().worker)
        ask = Claim(
            worker=self._ticket,
            queues=((defaults.OWN_QUEUE, 1),),
            tasks={TASK: (1, None)},
            limit=1,
            lease=defaults.LEADER,
            ids=(ID,),
        )
        next_in: float | None = None
        for _ in range(TRIES):
            claimed = await self._storage.claim(ask)
            if claimed.records:
                await self._take(claimed.records[0])
                return defaults.LEADER / BEATS
            next_in = claimed.next_in
            if not await self._open_way():
                break
        return min(defaults.POLL, max(next_in or defaults.POLL, defaults.POLL / BEATS))

    async def _take(self, row: Record) -> None:
        if await self._holds(row.version):
            self._version = row.version
            self._turn()
            log.info("worker %s leads: it prunes, redrives and ticks schedules", self._presence().worker)

    async def _holds(self, version: int) -> bool:
        """Renew the lead, with what it tends: a note that could not be saved goes again with the next."""
        hold = Hold(ID, version, note=msgspec.json.encode(self._tended()).decode())
        return ID not in (await self._storage.heartbeat(self._presence(), [hold], defaults.LEADER)).lost

    async def _open_way(self) -> bool:
        """Read who leads; make the row if there is none, free it if it should be ours. Whether to claim again."""
        [row] = await self._storage.get([ID])
        # Whoever follows gives a leader that starts at the same time as long as one that has fallen silent.
        patience = defaults.LEADER if self._role == "follower" else 0.0
        if row is None:
            # What has run passes limits and pauses, which are not to keep a fleet from being tended; but has no delay.
            new = NewJob(
                id=ID, task=TASK, queue=defaults.OWN_QUEUE, delay=patience, ran=not patience, lease=defaults.LEADER
            )
            await self._storage.enqueue([new])
            return not patience
        self._read(row)
        if not self._may_free(row):
            return False
        delay = patience if row.state.final else 0.0
        await self._storage.settle([Outcome(id=ID, version=row.version, state=State.READY, delay=delay, ran=True)])
        return not delay

    def _may_free(self, row: Record) -> bool:
        if row.state.final:  # the leader has left, or somebody has cancelled it: that ends no lead for good
            return True
        if row.state is State.RUNNING:
            return self._role == "leader" and not (row.worker or "").endswith("-leader")
        if row.place is None:  # a follower has made it, to wait for us
            return self._role != "follower"
        return not row.ran  # a pause holds it

    def _read(self, row: Record) -> None:
        found = LeaderDuties()
        with suppress(*UNREADABLE):
            found = msgspec.json.decode(row.note or "{}", type=LeaderDuties)
        if found != self._leaders and row.state is State.RUNNING:
            self._leaders = found
            self._turn()

    def _turn(self) -> None:
        self.turn += 1
        self._changed()

    async def leave(self) -> None:
        """End the lead, so that nobody has to wait for the lease, and nothing stands in line for ever once the whole
        fleet has stopped. Never raises StorageError."""
        version, self._version = self._version, None
        if version is not None:
            with suppress(StorageError):
                await self._storage.settle([Outcome(id=ID, version=version, state=State.SUCCEEDED)])


def leader_of(row: Record | None) -> str | None:
    """The name of the worker that leads, from the row."""
    if row is None or row.state is not State.RUNNING or row.worker is None:
        return None
    return row.worker.rpartition("#")[0]
