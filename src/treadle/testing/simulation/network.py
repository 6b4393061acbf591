"""The network between simulated processes and their storage: calls take time, may fail, and outlive their callers.

As with a real server, a call that was sent is applied even if the process that sent it is killed meanwhile.
"""

from __future__ import annotations

import asyncio
import random
import types
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextvars import Context
from typing import Any, NoReturn, TypeVar, cast

from treadle.core.errors import StorageUnavailable, Unsupported
from treadle.core.limit_model import Declare, LimitChange
from treadle.core.model import ACT, Claim, Claimed, HeartbeatResult, LeaseRenewal, Outcome, Presence, Settled, State
from treadle.storage import Fused, StorageProxy
from treadle.storage.contract import Capabilities, Storage
from treadle.testing.simulation.loop import ACTOR, Actor, SimulatedLoop

T = TypeVar("T")

TRAVEL = 0.02  # seconds that a slow call takes at most, each way
SLOW = 0.3  # fraction of slow calls
SIMULATION = "treadle.testing.simulate"
INSTEAD = (
    "its storage has no transactions and its app no outbox: test this code with app.testing(), and leave it out of the "
    "simulated tasks and scenario"
)


class Line:
    """The connection of one process: the faults of its calls, by call number."""

    def __init__(self) -> None:
        self.calls = 0
        self.faults: dict[int, str] = {}
        self.cut_until = 0.0


class Network(StorageProxy):
    """One storage, with a connection to it for each actor. Of the storage's capabilities it has settle_claim and
    single_caller. It says that it has transactions, so that `within` and `begin` can raise the error that a simulation
    has none."""

    def __init__(self, storage: Storage, loop: SimulatedLoop, rng: random.Random) -> None:
        super().__init__(storage)
        self._loop, self._rng = loop, rng
        self._server = loop.actor("storage")
        self._context = Context()
        self._context.run(ACTOR.set, self._server)
        self._lines: dict[Actor, Line] = {}
        self._claimed: set[tuple[str, int]] = set()
        self.calls: Counter[str] = Counter()
        self.heartbeats: dict[str, float] = {}  # worker that has not stopped -> the loop's time of its last heartbeat
        self.faults = 0  # number of faults that have happened

    @property
    def capabilities(self) -> Capabilities:
        single = self.storage.capabilities.single_caller
        return Capabilities(settle_claim=True, single_caller=single, transactions=True)

    def within(self, session: Any) -> NoReturn:
        raise Unsupported(SIMULATION, "within=", INSTEAD)

    async def begin(self, sync: bool) -> NoReturn:
        raise Unsupported(SIMULATION, "current().transaction()", INSTEAD)

    async def oldest_open(self) -> float:
        return 0.0

    def connect(self, actor: Actor, line: Line) -> None:
        """Send this actor's calls over this connection from now on. Calls of other actors do not fail."""
        self._lines[actor] = line

    async def around(self, verb: str, call: Callable[[Storage], Awaitable[T]]) -> T:
        self.calls[verb] += 1
        line = self._lines.get(ACTOR.get() or self._loop.root)
        fault = None
        if line is not None:
            line.calls += 1
            fault = line.faults.pop(line.calls, None)
            if line.cut_until > self._loop.now:
                fault = "lost" if self._rng.random() < 0.5 else "before"
        await self._travel()
        if fault == "before":
            self.faults += 1
            raise StorageUnavailable(f"{verb}: injected failure before it was applied")
        answer = await self._served(call, twice=fault == "twice")
        await self._travel()
        self.faults += fault is not None
        if fault == "lost":
            raise StorageUnavailable(f"{verb}: injected loss of its answer")
        return answer

    def _travel(self) -> Awaitable[None]:
        slow = self._rng.random()
        return asyncio.sleep(TRAVEL * slow / SLOW if slow < SLOW else 0)

    async def _served(self, call: Callable[[Storage], Awaitable[T]], twice: bool) -> T:
        """Apply the call on the server, whatever happens to the caller. Only a call that suspends gets a task on the
        server: most calls do not, and a task for each would double the steps of a seed."""

        async def serve() -> T:
            answer = await call(self.storage)
            return await call(self.storage) if twice else answer

        work = serve()
        try:
            first = self._context.run(work.send, None)
        except StopIteration as done:
            answer: T = done.value
            return answer
        return await asyncio.shield(self._loop.start(self._server, _went_on(work, first)))

    def _note(self, claimed: Claimed, ask: Claim) -> None:
        """Record a job as claimed when the claim is first applied."""
        for row in claimed.records:
            key = row.job.id, row.version
            if key not in self._claimed:
                self._claimed.add(key)
                self._server.history.add("claimed", row.job.id, version=row.version, name=ask.worker)

    # --- the contract

    async def open(self, look: bool = False) -> None: ...

    async def heartbeat(self, worker: Presence, renewals: Sequence[LeaseRenewal], lease: float) -> HeartbeatResult:
        async def noted(storage: Storage) -> HeartbeatResult:
            self.heartbeats[worker.worker] = self._loop.now
            if worker.gone:
                del self.heartbeats[worker.worker]
            return await storage.heartbeat(worker, renewals, lease)

        return await self.around("heartbeat", noted)

    async def close(self) -> None: ...

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        acts = [(_act(out), out.id) for out in outcomes if ACT in dict(out.checkpoints)]
        if not acts:
            return await super().settle(outcomes)
        history = (ACTOR.get() or self._loop.root).history
        for name, id in acts:
            history.add("act", id, name=name)
        answers = await super().settle(outcomes)
        for name, id in acts:
            history.add("acted", id, name=name)
        return answers

    async def set_limits(self, changes: Sequence[LimitChange]) -> None:
        history = (ACTOR.get() or self._loop.root).history
        for change in changes:
            if not isinstance(change, Declare):
                history.add("act", name=change.name, facts={"limit": True})
        await super().set_limits(changes)

    async def claim(self, ask: Claim) -> Claimed:
        async def claim(storage: Storage) -> Claimed:
            claimed = await storage.claim(ask)
            self._note(claimed, ask)
            return claimed

        return await self.around("claim", claim)

    async def settle_claim(self, outcomes: Sequence[Outcome], ask: Claim) -> tuple[list[Settled], Claimed]:
        async def both(storage: Storage) -> tuple[list[Settled], Claimed]:
            settled, claimed = await cast("Fused", storage).settle_claim(outcomes, ask)
            self._note(claimed, ask)
            return settled, claimed

        return await self.around("settle_claim", both)


def _act(out: Outcome) -> str:
    """The name of an act as the checker knows it."""
    if out.keep is not None:
        return "delete"
    return "cancel" if out.state is State.CANCELLED else "settle"


async def _went_on(work: Coroutine[Any, Any, T], first: object) -> T:
    return await _rest(work, first)


@types.coroutine
def _rest(work: Coroutine[Any, Any, T], first: object) -> Generator[Any, Any, T]:
    """The rest of a coroutine that has suspended on `first`."""
    try:
        yield first
    except BaseException:  # the simulation ends
        work.close()
        raise
    return (yield from work.__await__())
