"""The tasks of the soak, each with a value that follows from its arguments, and with a record of its run.

Deadlines, timeouts of runs, `Defer` and labels of jobs are left out: under faults of seconds no rule can say whether a
run was in time. The simulation has them (tests/simulate/orderly.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from tests.soak.skew import is_settable, most_ahead, true
from treadle import App, Flow, Limit, Retry, chain, current, flow, gather
from treadle.core.model import Claim, Record
from treadle.execution.context import Context
from treadle.execution.middleware import Middleware, Run
from treadle.testing.history import History, Recorder

LEASE = 2.0  # seconds; short, so that a stalled worker loses its jobs within a trial
EVERY = 0.5  # seconds between two ticks of the schedule
BOUND = 4  # waiting jobs of a bounded queue
SOON = Retry(attempts=100, base=0.05, max=0.3)
COMMON: dict[str, Any] = {"retry": SOON, "max_lost": 1_000_000, "keep": 86_400, "keep_failed": 86_400}
RULES = (
    Limit("tenant", slots=2),
    Limit("account", slots=1, hold="ended"),
    Limit("pace", rate=4, per=1.0),
    Limit("budget", slots=4),
    Limit("quota", rate=12, per=1.0),
    Limit("queue:refusing", max_waiting=BOUND),
    Limit("queue:oldest", max_waiting=BOUND, when_full="drop_oldest"),
    Limit("queue:lowest", max_waiting=BOUND, when_full="drop_lowest"),
)
BOUNDED = ("refusing", "oldest", "lowest")  # queues
PLACE: dict[str, Any] = {"labels": {"zone": "a"}, "resources": {"memory": 3}}  # of each worker
TABLES = ("CREATE TABLE soak_order (id text)", "CREATE TABLE soak_done (id text)")

# Task -> its value, computed from its arguments; also the expected value of a workflow or a join.
VALUES: dict[str, Callable[..., int]] = {
    "tree": lambda n: 3 * n + 3,
    "chained": lambda n: n + 2,
    "gathered": lambda n: 2 * n + 1,
    "join": lambda n: 2 * n + 1,
    "trip": lambda n: 2 * n,
}


class Claims(Middleware):
    """Records when each claim was made, by the storage's clock.

    Where that clock is set, this is an earlier moment rather than a later one, and none in the future.
    """

    def __init__(self, history: History) -> None:
        self._history = history

    async def run(self, context: Context, proceed: Run) -> Any:
        claimed = context.record.started_at
        if claimed is not None:
            at = min(claimed - most_ahead(), true()) if is_settable() else claimed
            worker = context.record.worker or ""
            self._history.add("claimed", context.id, version=context.version, at=at, name=worker)
        return await proceed()


def record_calls(storage: Any, history: History) -> None:
    """Record when claims of this storage are called and answered, where they overlap and skip each other's rows. The
    methods of the storage are replaced."""
    claim, settle_claim = storage.claim, storage.settle_claim

    async def recorded(ask: Claim, call: Awaitable[Any]) -> Any:
        history.add("claiming", name=ask.worker)
        answer = await call
        history.add("answered", name=ask.worker)
        return answer

    storage.claim = lambda ask: recorded(ask, claim(ask))
    storage.settle_claim = lambda outcomes, ask: recorded(ask, settle_claim(outcomes, ask))


def make(storage: Any, actor: str, path: str) -> tuple[App, History]:
    """Make an app with all tasks, and the history that it writes."""
    history = History(actor, clock=true, path=path)
    app = App(storage, retry=SOON) if isinstance(storage, str) else App(storage=storage, retry=SOON)
    app.middleware(Claims(history))
    Recorder(history).attach(app)
    # Redis with shards refuses rules of whole queues.
    sharded = isinstance(storage, str) and "shards=" in storage and "shards=1" not in storage
    app.limits.declare(*(rule for rule in RULES if not (sharded and rule.name.startswith("queue:"))))
    _plain(app)
    _placed(app)
    _composed(app)
    _durable(app, history)
    return app, history


def _plain(app: App) -> None:
    @app.task(name="work", **COMMON)
    async def work(n: int) -> int:
        await asyncio.sleep(random.random() ** 4)  # most are short; some are running whenever a fault comes
        if n % 7 == 0 and current().attempt == 1:
            raise RuntimeError("every seventh fails once")
        return n

    @app.task(name="thread", **COMMON)
    def thread(n: int) -> int:
        return n

    @app.task(name="tenant", options=lambda n: {"limits": [f"tenant:{n % 3}"]}, **COMMON)
    async def tenant(n: int) -> int:
        await asyncio.sleep(random.random() * 0.05)
        return n

    @app.task(name="account", options=lambda n: {"limits": [f"account:{n % 3}"]}, **COMMON)
    async def account(n: int) -> int:
        await asyncio.sleep(random.random() * 0.02)
        if n % 5 == 0 and current().attempt == 1:
            raise RuntimeError("every fifth fails once, and keeps its slot")
        return n

    @app.task(name="paced", limits=["pace"], **COMMON)
    async def paced(n: int) -> int:
        return n

    @app.task(name="costly", options=lambda n: {"limits": ["budget", "quota"], "cost": 1 if n % 4 else 3}, **COMMON)
    async def costly(n: int) -> int:
        await asyncio.sleep(random.random() * 0.1)
        return n

    @app.batch(name="batch", size=8, max_wait=0.05, **COMMON)
    async def batch(numbers: Sequence[int]) -> Sequence[int]:
        await asyncio.sleep(0.01)
        return list(numbers)

    @app.every(EVERY, catch_up="all")
    @app.task(name="tick", **COMMON)
    async def tick() -> int:
        return 1


def _placed(app: App) -> None:
    """Jobs that wait in bounded queues, and jobs that only some workers may run."""
    for queue in BOUNDED:

        async def crowd(n: int) -> int:
            await asyncio.sleep(0.05)
            return n

        app.task(name=f"crowd.{queue}", queue=queue, **COMMON)(crowd)

    @app.task(name="heavy", uses={"memory": 2}, **COMMON)
    async def heavy(n: int) -> int:
        await asyncio.sleep(random.random() * 0.1)
        return n

    @app.task(name="light", uses={"memory": 1}, requires={"zone": "a"}, **COMMON)
    async def light(n: int) -> int:
        await asyncio.sleep(random.random() * 0.1)
        return n


def _composed(app: App) -> None:
    @app.task(name="leaf", **COMMON)
    async def leaf(n: int) -> int:
        if n % 11 == 0 and current().attempt == 1:
            raise RuntimeError("every eleventh fails once")
        return n

    @app.task(name="plus", **COMMON)
    async def plus(n: int) -> int:
        return n + 1

    @app.task(name="add", **COMMON)
    async def add(parts: list[int]) -> int:
        return sum(parts)

    @app.task(name="tree", reduce="sum", **COMMON)
    async def tree(n: int) -> Flow[int]:
        return flow(leaf.job(n + each) for each in range(3))

    @app.task(name="chained", **COMMON)
    async def chained(n: int) -> Any:
        return chain(leaf.job(n), plus, plus)

    @app.task(name="gathered", **COMMON)
    async def gathered(n: int) -> Flow[int]:
        return gather(leaf.job(n), leaf.job(n + 1)).into(add)

    @app.task(name="join", **COMMON)
    async def join(n: int) -> int:
        return sum(await current().upstream())

    @app.task(name="any", **COMMON)
    async def any_of(n: int) -> int:
        return n


def _durable(app: App, history: History) -> None:
    def step(name: str, value: int) -> Callable[[], int]:
        here = current()

        def run() -> int:
            history.add("step", here.id, version=here.version, name=name)
            return value

        return run

    async def kept(name: str, value: int) -> int:
        here = current()
        found: int = await here.step(name, step(name, value))
        history.add("kept", here.id, version=here.version, name=name, text=json.dumps(found))
        return found

    @contextlib.contextmanager
    def waiting(name: str, seconds: float) -> Iterator[None]:
        here = current()
        history.add("waits", here.id, version=here.version, name=name, seconds=seconds)
        with contextlib.suppress(TimeoutError):
            yield
        history.add("waited", here.id, version=here.version, name=name)

    @app.task(name="trip", **COMMON)
    async def trip(n: int) -> int:
        there = await kept("there", n)
        with waiting("rest", 0.2):
            await current().sleep(0.2)
        return there + await kept("back", n)

    @app.task(name="impatient", **COMMON)
    async def impatient(n: int) -> int:
        with waiting("never", 0.3):
            await current().wait_for("never", timeout=0.3)
        return n

    @app.task(name="approve", **COMMON)
    async def approve(n: int) -> int:
        here = current()
        value = await here.wait_for("go", returns=int)
        history.add("received", here.id, version=here.version, name="go", text=json.dumps(value))
        return value

    @app.task(name="ordered", **COMMON)
    async def ordered(n: int) -> int:
        return n

    @app.task(name="book", **COMMON)
    async def book(n: int) -> int:
        here = current()
        async with here.transaction() as tx:
            done: Any = tx.execute(f"INSERT INTO soak_done VALUES ('{here.id}')")
            if asyncio.iscoroutine(done):  # PostgreSQL's connection is asynchronous
                await done
        return n


def arguments(app: App, row: Record) -> int | None:
    """The number with which a job was called; None if it has none."""
    args, _ = app.jobs.arguments(row)
    return args[0] if args and isinstance(args[0], int) else None
