"""The fleet that our own simulations run: every kind of job at once, and operators who cancel, retry and pause."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from treadle import (
    App,
    Flow,
    JobSpec,
    Key,
    Limit,
    Retry,
    all_done,
    at_least,
    current,
    flow,
    gather,
)
from treadle.core.model import ASKED, State
from treadle.errors import IdTaken, KeyHeld, Signalled, Stale, TreadleError
from treadle.testing.history import History
from treadle.testing.simulation import ACTOR, Simulation

app = App("memory://", retry=Retry(attempts=30, base=0.05, max=1.0))
app.limits.declare(Limit("account", slots=1), Limit("api", slots=2), Limit("calls", rate=3, per=1.0))
OFTEN = 1_000  # a simulation kills more workers than a job may lose


def here() -> History:
    """The history of the process that runs this."""
    actor = ACTOR.get()
    assert actor is not None
    return actor.history


# --- tasks


@app.task(max_lost=OFTEN)
async def plain(n: int) -> int:
    await asyncio.sleep(0.01 * (n % 7))
    return n


@app.task(max_lost=OFTEN)
async def flaky(n: int) -> int:
    await asyncio.sleep(0.02)
    if current().attempt < 1 + n % 3:
        raise ValueError("not yet")
    return n


@app.task(max_lost=OFTEN)
async def long(n: int) -> int:
    await asyncio.sleep(7.0)
    return n


@app.task(max_lost=OFTEN)
def in_thread(n: int) -> int:
    return n


@app.task(max_lost=OFTEN, retry=Retry(attempts=2, base=0.1))
async def hopeless(n: int) -> int:
    raise ValueError("never")


@app.task(max_lost=OFTEN, queue="strict")
async def in_turn(n: int) -> int:
    await asyncio.sleep(0.05 * (n % 3))
    return n


@app.task(max_lost=OFTEN, reduce="sum")
async def parent(n: int) -> Flow[int]:
    return flow(plain.job(n), flaky.job(n), middle.job(n))


@app.task(max_lost=OFTEN, reduce="sum")
async def middle(n: int) -> Flow[int]:
    return flow(plain.job(n), plain.job(2 * n))


@app.task(max_lost=OFTEN)
async def fan_in(n: int) -> Any:
    return gather(*(plain.job(n + each) for each in range(3))).into(add)


@app.task(max_lost=OFTEN)
async def add(parts: list[int]) -> int:
    return sum(parts)


@app.task(max_lost=OFTEN)
async def add_two(n: int) -> int:
    return n + 2


@app.task(max_lost=OFTEN)
async def tolerant(n: int) -> Any:
    return gather(plain.job(n), hopeless.job(n), plain.job(n), when=at_least(2)).into(count)


@app.task(max_lost=OFTEN)
async def count(parts: list[int | None]) -> int:
    return sum(part is not None for part in parts)


@app.task(max_lost=OFTEN)
async def sender(n: int) -> int:
    """Enqueues within its run; a repeated run enqueues the same jobs."""
    for each in range(2):
        await plain.enqueue(n + each)
    return n


@app.task(max_lost=OFTEN)
async def keyed(n: int) -> int:
    await asyncio.sleep(0.3)
    return n


@app.task(max_lost=OFTEN)
async def durable(n: int) -> str:
    me, version = current().id, current().version

    async def pay() -> str:
        here().add("step", me, name="pay", version=version)
        await asyncio.sleep(0.02)
        return f"{n} at {version}"

    paid = await current().step("pay", pay)
    here().add("kept", me, name="pay", version=version, text=paid)
    await current().sleep(0.5)
    word = await current().wait_for("go", returns=str)
    here().add("received", me, name="go", text=word)
    return f"{paid} {word}"


@app.task(max_lost=OFTEN, retry=Retry(attempts=1))
async def racing(n: int) -> int:
    """Two waits at the same time, which the engine refuses."""
    waits = [asyncio.ensure_future(current().sleep(1.0)), asyncio.ensure_future(current().wait_for("never"))]
    await asyncio.gather(*waits, return_exceptions=True)
    return n


@app.task(max_lost=OFTEN)
async def sharing(n: int) -> Any:
    """Returns a job whose key another one may hold; then it gets the value of that one."""
    return gather(keyed.options(key=f"shared-{n}").job(n), plain.job(n)).into(add)


@app.task(max_lost=OFTEN, reduce="sum")
async def sharing_beside(n: int) -> Flow[int]:
    """The same as `sharing`, but it waits for the children itself."""
    return flow(keyed.options(key=f"shared-{n}").job(n), plain.job(n))


@app.batch(size=4, max_wait=0.2, max_lost=OFTEN)
async def together(items: list[int]) -> list[int]:
    await asyncio.sleep(0.05)
    return [2 * item for item in items]


@app.every(4.0)
@app.task(max_lost=OFTEN)
async def tick() -> None: ...


# --- the program

Deed = Callable[[Simulation, int], Awaitable[None]]


async def send(sim: Simulation, spec: Any, value: object = None) -> Any:
    """Enqueue until the storage answers."""
    job = await sim.again(lambda: app.enqueue(spec))
    if value is not None:
        sim.expect(job, json.dumps(value))
    return job


async def singles(sim: Simulation, n: int) -> None:
    task = sim.chance.choice((plain, flaky, in_thread, long))
    how: dict[str, Any] = {}
    if sim.chance.random() < 0.5:
        how = sim.chance.choice(({"priority": 5}, {"delay": 1.5}, {"lane": f"tenant-{n % 2}"}, {"aging": 3.0}))
    await send(sim, task.options(**how).job(n), n)


async def several(sim: Simulation, n: int) -> None:
    for job, each in zip(await send(sim, [plain.job(n + each) for each in range(4)]), range(4), strict=True):
        sim.expect(job, json.dumps(n + each))


async def in_order(sim: Simulation, n: int) -> None:
    for each in range(3):
        await send(sim, in_turn.options(limits=["account:1"]).job(n + each), n + each)


async def limited(sim: Simulation, n: int) -> None:
    for each in range(3):
        limit = sim.chance.choice((["api"], ["api:x"], ["calls"], ["api", "calls"]))
        await send(sim, plain.options(limits=limit).job(n + each), n + each)


async def families(sim: Simulation, n: int) -> None:
    specs: list[tuple[JobSpec[Any, Any], int]] = [
        (parent.job(n), 5 * n),
        (fan_in.job(n), 3 * n + 3),
        (tolerant.job(n), 2),
    ]
    spec, value = sim.chance.choice(specs)
    await send(sim, spec, value)


async def joined(sim: Simulation, n: int) -> None:
    first, second = await send(sim, plain.job(n), n), await send(sim, hopeless.job(n))
    await send(sim, plain.options(after=[first]).job(n + 1), n + 1)
    await send(sim, plain.options(after=[first, second], when=all_done()).job(n + 2), n + 2)
    doomed = await send(sim, plain.options(after=[first, second]).job(n))
    sim.expect(doomed, None)


async def with_keys(sim: Simulation, n: int) -> None:
    for _ in range(3):
        conflict: Any = sim.chance.choice(("keep", "keep", "raise", "replace"))
        with suppress(KeyHeld):
            await send(sim, keyed.options(key=Key(str(n % 2), conflict=conflict)).job(n))
        await asyncio.sleep(sim.chance.random() * 0.3)


async def inside(sim: Simulation, n: int) -> None:
    await send(sim, sender.job(n), n)


async def waits(sim: Simulation, n: int) -> None:
    job = await send(sim, durable.job(n))
    await asyncio.sleep(sim.chance.choice((0.0, 0.3, 3.0)))
    here().add("signal", job.id, name="go", text="now")
    with suppress(Signalled, Stale):  # the call before was carried out and its answer lost; the job may have ended
        await sim.again(lambda: app.jobs.signal(job, "go", "now"))
    here().add("signalled", job.id, name="go", text="now")


async def batches(sim: Simulation, n: int) -> None:
    for job, each in zip(await send(sim, [together.job(n + each) for each in range(5)]), range(5), strict=True):
        sim.expect(job, json.dumps(2 * (n + each)))


async def share(sim: Simulation, n: int) -> None:
    await send(sim, keyed.options(key=f"shared-{n}").job(n), n)
    await send(sim, sim.chance.choice((sharing, sharing_beside)).job(n), 2 * n)
    first = keyed.options(key=f"shared-{n}").job(n)
    _, job = await send(sim, [first, add_two.options(after=[first], pass_result=True).job()])
    sim.expect(job, json.dumps(n + 2))


async def chosen(sim: Simulation, n: int) -> None:
    """Two tasks enqueue one id: one of them gets it."""
    for task in (plain, flaky):
        with suppress(IdTaken):
            await send(sim, task.options(id=f"chosen-{n % 3}").job(n % 3))


async def race(sim: Simulation, n: int) -> None:
    sim.expect(await send(sim, racing.job(n)), None)


async def given_up(sim: Simulation, n: int) -> None:
    """A workflow that is cancelled while it grows."""
    job = await send(sim, sim.chance.choice((parent, fan_in)).job(n))
    await asyncio.sleep(sim.chance.random() * 0.1)
    await _act(sim, "cancel", job.id, lambda: app.jobs.cancel(job))


DEEDS: tuple[Deed, ...] = (
    singles,
    singles,
    several,
    in_order,
    limited,
    families,
    families,
    joined,
    with_keys,
    inside,
    waits,
    batches,
    share,
    chosen,
    race,
    given_up,
)


async def work(sim: Simulation) -> None:
    """Run a few producers and one or two operators."""
    operators = [sim.spawn(f"operator-{each}", operate(sim)) for each in range(sim.chance.randint(1, 2))]
    producers = [sim.spawn(f"producer-{each}", produce(sim, each)) for each in range(sim.size // 3)]
    await produce(sim, 9)
    await asyncio.wait([*operators, *producers])


async def produce(sim: Simulation, number: int) -> None:
    for each in range(max(1, sim.size // 2)):
        await sim.chance.choice(DEEDS)(sim, 100 * number + 10 * each + 1)
        await asyncio.sleep(sim.chance.choice((0.0, 0.05, 1.0)))


# --- the operators


async def operate(sim: Simulation) -> None:
    """Act on jobs and queues; at the end nothing is paused."""
    for _ in range(sim.chance.randint(0, 3)):
        await asyncio.sleep(sim.chance.random() * 3)
        await sim.chance.choice((cancel, cancel, retry, pause, change, collide))(sim)


def _some(sim: Simulation) -> str | None:
    """A stored job, but not one that waits for a signal, which is sent once, and not one whose value other jobs have
    too."""
    stored = {entry.id for entry in sim.entries if entry.what == "stored"}
    ids = [
        entry.id
        for entry in sim.entries
        if entry.what == "asked"
        and entry.id in stored
        and not entry.facts["task"].endswith("durable")
        and "shared-" not in entry.facts.get("key", "")
    ]
    return sim.chance.choice(ids) if ids else None


async def _act(sim: Simulation, name: str, id: str, act: Callable[[], Awaitable[Any]]) -> None:
    """Act on a job; from then on, the values of its workflow are not predictable."""
    here().add("act", id, name=name)
    sim.forget(id)
    with suppress(TreadleError):
        await sim.again(act)
    here().add("acted", id, name=name)


async def cancel(sim: Simulation) -> None:
    id = _some(sim)
    if id is not None:
        await _act(sim, "cancel", id, lambda: app.jobs.cancel(id))


async def retry(sim: Simulation) -> None:
    id = _some(sim)
    if id is not None:
        await _act(sim, "retry", id, lambda: app.jobs.retry(id))


async def pause(sim: Simulation, queue: str | None = None) -> None:
    queue = queue or sim.chance.choice(("default", "strict"))
    name = f"queue:{queue}"
    here().add("act", name=name, facts={"limit": True})
    await sim.again(lambda: app.queues.pause(queue))
    here().add("acted", name=name, facts={"paused": queue})
    await asyncio.sleep(sim.chance.random() * 3)
    here().add("act", name=name, facts={"limit": True, "resumed": queue})
    await sim.again(lambda: app.queues.resume(queue))


async def change(sim: Simulation) -> None:
    name = sim.chance.choice(("api", "queue:strict", "queue:default"))
    here().add("act", name=name, facts={"limit": True})
    await sim.again(lambda: app.limits.set(Limit(name, slots=sim.chance.randint(1, 3))))


async def collide(sim: Simulation) -> None:
    """Two operators change one limit at the same time."""
    here().add("act", name="queue:strict", facts={"limit": True})
    rule = Limit("queue:strict", slots=sim.chance.randint(1, 3))
    await asyncio.gather(pause(sim, "strict"), sim.again(lambda: app.limits.set(rule)))


# --- additional rules


def paused_queues_start_nothing(sim: Simulation) -> None:
    """No job of a paused queue is claimed between the answer to a pause and the first call that resumes the queue."""
    paused: set[str] = set()
    queue_of = {row.job.id: row.job.queue for row in sim.rows}
    for entry in sim.entries:
        if "paused" in entry.facts:
            paused.add(entry.facts["paused"])
        elif "resumed" in entry.facts:
            paused.discard(entry.facts["resumed"])
        elif entry.what == "claimed" and not _has_run(sim, entry.id):
            assert queue_of.get(entry.id) not in paused, f"{entry.id} was claimed at {entry.at:g} from a paused queue"


def _has_run(sim: Simulation, id: str) -> bool:
    return any(row.function_done and row.job.id == id for row in sim.rows)


def no_child_goes_on_after_a_cancel(sim: Simulation) -> None:
    """After a job was cancelled, no child that it waits for is claimed for the first time."""
    root = {row.job.id: row.job.root or row.job.id for row in sim.rows}
    retried = {root.get(entry.id) for entry in sim.entries if entry.what == "act" and entry.name == "retry"}
    answered = {entry.id: entry.at for entry in sim.entries if entry.what == "acted" and entry.name == "cancel"}
    claims = {entry.id: entry.at for entry in sim.entries if entry.what == "claimed" and entry.version == 1}
    rows = {row.job.id: row for row in sim.rows}
    for id, at in answered.items():
        row = rows.get(id)
        if row is None or row.state is not State.CANCELLED or row.reason != ASKED or root[id] in retried:
            continue
        for child in row.after:
            if child in rows and rows[child].job.parent == id:
                assert claims.get(child, 0.0) <= at, f"{child} began after its parent {id} was cancelled"


INVARIANTS = paused_queues_start_nothing, no_child_goes_on_after_a_cancel
