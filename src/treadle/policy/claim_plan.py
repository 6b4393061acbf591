"""Which tasks the next claim of a worker with resources may bring, and for which task it keeps resources free.

A claim says which tasks and how many jobs, not how much they may use in all. So a claim is planned such that any jobs
it may bring fit together. Real workers plan with it, and so do the virtual workers of estimates.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from treadle.core.placement import fitting_runs, runs_of_any

Rooms = dict[str, tuple[int | None, float | None]]
"""Task -> its largest number of jobs in a claim, and their lease in seconds. None: the limit of the claim; the worker's
lease."""

Uses = tuple[tuple[str, int], ...]
TURN: Final = 5.0  # s for which a task did not fit, after which the worker keeps resources free for its next job
EVERY: Final = 1.0  # s between two checks for a turn while a task waits


class Offer(NamedTuple):
    """A task that uses resources, as a claim could bring it now.

    uses      the resources of one run, or of one call of a batch
    cost      those of one more job: none for an item that joins a call which is gathered
    one_call  any number of its jobs become one call
    room      jobs of a batch with a key that it may bring at most; None: no batch with a key
    """

    uses: Uses
    cost: Uses
    one_call: bool = False
    room: int | None = None


class Head(NamedTuple):
    """The first queued job of a task in a queue. `turn`: its place in queue order."""

    task: str
    queue: str
    turn: tuple[float, float, str]


class ClaimPlan(Struct, frozen=True, gc=False):
    """The bounds of the next claim.

    limit     jobs at most
    heavy     the tasks that use resources and that it names
    rooms     tasks of which it may bring so many
    only      it names this task and no other: the one for which the worker has kept resources free
    narrow    it names fewer tasks or jobs than could start, so another claim follows at once
    bounded   resources allow fewer jobs than there are free slots
    """

    limit: int
    heavy: Collection[str] = ()
    rooms: Mapping[str, int] = {}
    only: str | None = None
    narrow: bool = False
    bounded: bool = False

    def among(self, tasks: Rooms, heavy: Collection[str]) -> Rooms:
        """The tasks of a claim that it may bring, with the number of jobs of each. `heavy`: all that use resources."""
        if self.only is not None:
            return {self.only: (1, tasks[self.only][1])} if self.only in tasks else {}
        rooms = {name: room for name, room in tasks.items() if name not in heavy or name in self.heavy}
        return rooms | {name: (room, rooms[name][1]) for name, room in self.rooms.items() if name in rooms}


class ClaimPlanner:
    """One for each worker with resources. `clock`: seconds from any origin.

    reserved  the task whose turn it is
    waits     task that did not fit -> the clock's time since when

    A task that can run here but has not fitted for TURN s waits for its turn, if a job of it is queued. Its turn is a
    reservation: what a job of it uses is kept free from then on, until a claim for it alone. One task has its turn at a
    time, in the order in which they began to wait. So a job of it starts once enough running jobs have ended, however
    many smaller jobs are queued.
    """

    def __init__(self, clock: Callable[[], float], reserved: str = "") -> None:
        self.clock, self.reserved = clock, reserved
        self.waits: dict[str, float] = {}
        self._light_next = False  # the next claim leaves out the tasks that use resources

    def claims(self, heavy: Collection[str]) -> None:
        """Note the tasks with resources that the worker claims from now on."""
        self.waits = {name: since for name, since in self.waits.items() if name in heavy}
        if self.reserved not in heavy:
            self.reserved = ""

    def plan_beside(self, limit: int, free: Mapping[str, int], offers: Mapping[str, Offer]) -> ClaimPlan:
        """A claim that is made while another one is under way. It brings jobs without resources, and only if no other
        has room: they would start before older jobs. The slot that has become free for a task's turn is that task's."""
        if self.reserved and not fits(offers[self.reserved].cost, free):
            free = less(free, offers[self.reserved].uses)
        return ClaimPlan(0 if any(fits(offer.cost, free) for offer in offers.values()) else limit)

    def plan(self, limit: int, free: Mapping[str, int], offers: Mapping[str, Offer]) -> ClaimPlan:
        """The next claim, which may bring `limit` jobs. `free`: the free resources; `offers`: by task."""
        fitting = [name for name, offer in offers.items() if fits(offer.cost, free)]
        for name in offers:
            if name not in fitting:
                self.waits.setdefault(name, self.clock())
        if self.reserved:
            if self.reserved in fitting:
                return ClaimPlan(1, only=self.reserved, narrow=True)
            free = less(free, offers[self.reserved].uses)
            fitting = [name for name in fitting if fits(offers[name].cost, free)]
        light, self._light_next = self._light_next, False
        if not fitting or light:
            return ClaimPlan(limit, narrow=light and bool(fitting))
        return _among({name: offers[name] for name in fitting}, free, limit)

    def answered(self, plan: ClaimPlan, brought: Sequence[str]) -> None:
        """The claim of this plan has brought jobs of these tasks. The wait of a task ends with a job of it, or if none
        is queued."""
        full = len(brought) >= plan.limit
        if plan.only is not None:
            self.reserved = ""
            self.waits.pop(plan.only, None)
            return
        if not plan.heavy:
            return
        self._light_next = full and plan.bounded  # otherwise queue order alone has decided
        for name in list(self.waits):
            if name in plan.heavy and (not full or name in brought):
                del self.waits[name]

    # --- turns

    def overdue(self) -> list[str]:
        """The tasks that have waited for TURN seconds, longest wait first."""
        now = self.clock()
        return [] if self.reserved else [name for name, since in self.waits.items() if now - since >= TURN]

    def give_turn(self, overdue: Iterable[str], heads: Sequence[Head], uses: Mapping[str, Uses]) -> bool:
        """Reserve for the task that has waited longest, if its first job is the next one that uses its resources.

        heads  the first queued job of each task that uses resources, by queue
        uses   the resources of a run of each of them
        """
        for name in overdue:
            own = [head for head in heads if head.task == name]
            if not own:
                self.waits.pop(name, None)  # no job of it is queued: its wait starts over
            elif any(_is_next(head, heads, uses) for head in own):
                self.reserved = name
                return True
        return False


def _among(fitting: Mapping[str, Offer], free: Mapping[str, int], limit: int) -> ClaimPlan:
    """The largest claim for these tasks such that any jobs it may bring fit together."""
    rooms: dict[str, int] = {}
    for name, offer in fitting.items():
        if offer.room is not None:
            rooms[name] = min(offer.room, fitting_runs(offer.uses, free))
        elif offer.one_call and offer.cost:
            free = less(free, offer.cost)
    single = [offer.cost for offer in fitting.values() if not offer.one_call]
    most = min(runs_of_any(single, free), limit) if min(free.values(), default=0) >= 0 else 1
    return ClaimPlan(max(1, most), set(fitting), rooms, bounded=max(1, most) < limit)


def _is_next(head: Head, heads: Sequence[Head], uses: Mapping[str, Uses]) -> bool:
    """Whether no job of its queue that uses one of its resources is ahead of it. Such a job goes first, by its
    priority or because it came earlier."""
    own = dict(uses.get(head.task, ())).keys()
    return not any(
        other.queue == head.queue and other.turn < head.turn and own & dict(uses.get(other.task, ())).keys()
        for other in heads
    )


def fits(uses: Uses, free: Mapping[str, int]) -> bool:
    """Whether this much is free."""
    return all(amount <= free.get(name, 0) for name, amount in uses)


def less(free: Mapping[str, int], uses: Uses) -> dict[str, int]:
    """The free resources, less what these uses take."""
    remaining = dict(free)
    for name, amount in uses:
        remaining[name] = remaining.get(name, 0) - amount
    return remaining
