"""Virtual workers: each claims what a real one with its labels, resources and code would claim."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from treadle.admin.estimate.snapshot import Snapshot
from treadle.admin.explain.workers import is_silent
from treadle.core.limit_model import Limit
from treadle.core.model import Claim, Presence, Record
from treadle.policy.claim_plan import ClaimPlan, ClaimPlanner, Offer, Uses, less
from treadle.policy.misfits import is_left_by, released_by

LEASE: Final = 1e9  # s: in a virtual run no worker is lost


class Extra(Struct, frozen=True, kw_only=True):
    """A change that a run tries out.

    workers  that many more workers, each of them `like` this one
    limits   other rules
    resumed  limits that are resumed
    now      the job is due now
    """

    workers: int = 0
    like: Presence | None = None
    limits: tuple[Limit, ...] = ()
    resumed: tuple[str, ...] = ()
    now: bool = False


NOTHING: Final = Extra()


class VirtualWorker:
    """A worker of a virtual run. `clock`: the virtual time.

    free      free slots; a worker that is being replaced has none: its running jobs end, and it claims no more
    left_out  jobs whose arguments its version of the code cannot read
    uses      task -> the resources of a run
    unused    resource -> the amount that no running job uses
    offers    task -> what a run of it uses, for the planner
    planner   plans its claims, as that of a real worker does
    """

    def __init__(
        self, presence: Presence, starts_at: float, clock: Callable[[], float], left_out: Iterable[str]
    ) -> None:
        self.name, self.queues, self.starts_at = presence.worker, presence.queues, starts_at
        self.free, self.claims_more = 0 if presence.draining else presence.slots, not presence.draining
        self.left_out = set(left_out)
        self.tasks: dict[str, tuple[int | None, float | None]] = dict.fromkeys(presence.tasks, (None, None))
        self.uses: dict[str, Uses] = {needs.task: needs.uses for needs in presence.needs if needs.uses}
        self.unused = {name: has for name, has, _ in presence.resources}
        self._in_use = {name: used for name, _, used in presence.resources}
        self.offers = {task: Offer(uses, uses) for task, uses in self.uses.items() if task in self.tasks}
        reserved = presence.reserved if presence.reserved in self.offers else ""
        self.planner = ClaimPlanner(clock, reserved)
        self._turn = 0

    # --- what runs

    def begins(self, task: str) -> None:
        """A job of this task takes a slot and its resources."""
        self.free -= 1
        self.unused = less(self.unused, self.uses.get(task, ()))

    def ends(self, task: str) -> None:
        self.free += 1
        self.gives_back(self.uses.get(task, ()))

    def gives_back(self, uses: Uses) -> None:
        """These resources are not in use any more."""
        self.unused = less(self.unused, tuple((name, -amount) for name, amount in uses))

    def hold_unseen(self, has: Mapping[str, int]) -> Uses:
        """Take the resources that its heartbeat counts as used, and that no known run uses."""
        unseen = [(name, used - (has[name] - self.unused[name])) for name, used in self._in_use.items()]
        held = tuple((name, amount) for name, amount in unseen if amount > 0)
        self.unused = less(self.unused, held)
        return held

    def lacks(self, task: str) -> str | None:
        """The first resource of which the worker has too little free for a job of this task, not counting what it keeps
        free for another task; None: the job has room."""
        free, reserved = self.unused, self.planner.reserved
        if reserved not in ("", task):
            free = less(free, self.uses[reserved])
        return next((name for name, amount in self.uses.get(task, ()) if amount > free.get(name, 0)), None)

    def claim(self, plan: ClaimPlan, number: int) -> Claim:
        """A claim within these bounds. Each queue gets an equal share; each claim begins with the next queue."""
        self._turn = (self._turn + 1) % len(self.queues)
        order = self.queues[self._turn :] + self.queues[: self._turn]
        share = max(1, plan.limit // len(order))
        return Claim(
            worker=f"{self.name}#{number}",
            queues=tuple((queue, share) for queue in order),
            tasks=plan.among(self.tasks, self.offers),
            limit=plan.limit,
            lease=LEASE,
            running=tuple(self.left_out),
        )


def crew_of(copy: Snapshot, extra: Extra, clock: Callable[[], float]) -> list[VirtualWorker]:
    """The workers with a recent heartbeat, and the additional ones."""
    misfits = [row for row in copy.rows if released_by(row) is not None]
    crew = list[VirtualWorker]()
    for worker in copy.workers:
        if worker.queues and not is_silent(worker):
            starts = copy.now + max(0.0, worker.paused - worker.age)
            crew.append(VirtualWorker(worker, starts, clock, _left_by(worker, misfits, copy)))
    if (like := extra.like) is not None:
        out = _left_by(like, misfits, copy)
        more = (replace(like, worker=f"more-{number}") for number in range(extra.workers))
        crew += [VirtualWorker(worker, copy.now, clock, out) for worker in more]
    return crew


def _left_by(worker: Presence, misfits: list[Record], copy: Snapshot) -> list[str]:
    return [row.job.id for row in misfits if is_left_by(row, worker, copy.workers)]
