"""`app.jobs.explain`: why a job does not run, when a limit, a worker or a service is the cause."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.kit import Spy, work
from treadle import App, Limit
from treadle.core.model import Claim, Presence
from treadle.testing import HandClock
from treadle_testkit.shows import shows


async def say(app: App, spy: Spy, job: Any, words: str) -> Any:
    """The sentence, once it contains these words: what a worker reports of itself comes with a heartbeat."""

    async def sentence() -> str:
        said = await app.jobs.explain(job)
        return said if words in said else ""

    return await spy.until(sentence, f"a sentence with {words!r}")


def present(worker: str = "w1", queue: str = "default", **facts: Any) -> Presence:
    return Presence(**{"worker": worker, "queues": (queue,), "tasks": ("t",), "slots": 4, **facts})


@shows("`explain` names a used-up rate of the queue and the next possible start")
async def test_a_rate_of_the_queue_that_is_used_up(app: App, clock: HandClock) -> None:
    @app.task(name="t", queue="mail")
    async def t() -> None: ...

    await app.limits.set(Limit("queue:mail", rate=1, per=3600))
    first, second, third = await app.enqueue(t.job() for _ in range(3))
    await app.storage.heartbeat(present(queue="mail"), [], 30)
    assert "shortly" in await app.jobs.explain(first)
    await app.storage.claim(Claim(worker="w1#1", queues=(("mail", 9),), limit=9, lease=9999))
    clock.advance(188)
    await app.storage.heartbeat(present(queue="mail"), [], 30)
    used_up = (
        "It is queued, and the rate of its queue 'mail' (1 start per 3600 s) is used up; the next start is possible "
        "at 2023-11-14 23:13:20 UTC, in 3,412 s"
    )
    since = (
        "; `treadle limits set queue:mail --rate 2 --per 3600` doubles the rate. It has waited since 2023-11-14 "
        "22:13:20 "
        "UTC."
    )
    assert await app.jobs.explain(second) == f"{used_up}{since}"
    assert await app.jobs.explain(third) == f"{used_up}; 1 job is ahead of it{since}"
    clock.advance(3412)
    await app.storage.heartbeat(present(queue="mail"), [], 30)
    assert "shortly" in await app.jobs.explain(second)


@shows("`explain` names a used-up rate of a limit and the number of jobs it blocks")
async def test_a_rate_of_a_limit_that_is_used_up(app: App, clock: HandClock) -> None:
    @app.task(name="t", limits=["api"])
    async def t() -> None: ...

    await app.storage.heartbeat(present(), [], 30)
    await app.limits.set(Limit("api", slots=5, rate=2, per=60))
    *_, third = await app.enqueue(t.job() for _ in range(3))
    large = await t.options(cost=2).enqueue()
    await app.storage.claim(Claim(worker="w1#1", limit=9, lease=9999))
    clock.advance(10)
    assert await app.jobs.explain(third) == (
        "It is blocked: the rate of the limit 'api' (2 starts per 60 s) is used up; the next start is possible at "
        "2023-11-14 22:14:20 UTC, in 50 s; 2 jobs are blocked; `treadle limits set api --slots 5 --rate 4 --per "
        "60` doubles "
        "the rate. It has waited since 2023-11-14 22:13:20 UTC."
    )
    clock.advance(50)
    await app.storage.claim(Claim(worker="w1#2", limit=1))
    assert await app.jobs.explain(large) == (
        "It is blocked until the limit 'api' has room (3 of 5 slots in use, 1 of 2 starts per 60 s used, it needs 2, "
        "1 job is blocked); there is room at 2023-11-14 22:15:20 UTC, in 60 s; `treadle limits set api --slots 5 "
        "--rate 4 --per 60` doubles the rate. It has waited since 2023-11-14 22:13:20 UTC."
    )


@shows("`explain` distinguishes a hold by `Defer(limit=)` from the pause of an operator")
async def test_a_rest_that_a_job_requested_is_no_pause(app: App, clock: HandClock) -> None:
    @app.task(name="t", limits=["api"])
    async def t() -> None: ...

    await app.storage.heartbeat(present(), [], 30)
    await app.limits.set(Limit("api", rate=100, per=1))
    await app.limits.hold("api", clock() + 60, held=True)
    job = await t.enqueue()
    await app.storage.claim(Claim(worker="w1#1"))
    assert await app.jobs.explain(job) == (
        "The limit 'api' rests until 2023-11-14 22:14:20 UTC because a job requested that (`Defer(limit=...)`, as "
        "after a 429); it resumes by itself."
    )
    await app.limits.pause("api")
    assert await app.jobs.explain(job) == (
        "The limit 'api' is paused: `treadle limits resume api` resumes it; it also rests until 2023-11-14 22:14:20 "
        "UTC, because a job requested that."
    )


@shows("`explain` names the worker whose heartbeat is late")
async def test_a_worker_that_sends_no_heartbeat(app: App, clock: HandClock) -> None:
    """A killed worker counts as present for three leases, and claims nothing."""

    @app.task(name="t")
    async def t() -> None: ...

    job = await t.enqueue()
    await app.storage.heartbeat(present("w1"), [], 30)
    clock.advance(10)
    assert "shortly" in await app.jobs.explain(job)
    clock.advance(35)
    said = await app.jobs.explain(job)
    assert said.startswith(
        "It is queued, but the last heartbeat of the only worker that can run it came 45 s ago (w1): "
    )
    await app.storage.heartbeat(present("w2"), [], 30)
    assert "shortly" in await app.jobs.explain(job)
    clock.advance(20)
    assert "of the 2 workers that can run it came 20 s ago (w2)" in await app.jobs.explain(job)
    clock.advance(71)
    assert (await app.jobs.explain(job)).startswith("It is queued, and no worker serves its queue 'default': `treadle")


@shows("`explain` names the worker that a throttle pauses")
async def test_a_throttle_that_pauses_every_worker(app: App, spy: Spy) -> None:
    @app.task(name="t")
    async def t() -> None: ...

    async def pause() -> float:
        return 3600.0

    async with work(app, name="w1", throttle=pause):
        job = await t.enqueue()
        said = await say(app, spy, job, "throttle")
        assert said.startswith("It is queued, but worker 'w1' may claim nothing because of a throttle, until 2023-")
        await app.storage.heartbeat(present("w2"), [], 30)
        assert "shortly" in await app.jobs.explain(job)


@shows("`explain` names the worker that declined the job and the next offer")
async def test_a_worker_that_declines_the_job(app: App, spy: Spy, clock: HandClock) -> None:
    @app.task(name="t")
    async def t() -> None: ...

    async with work(app, name="w1", poll=60, accept=lambda row: False):
        job = await t.enqueue()
        said = await say(app, spy, job, "declined")
        assert said == (
            "It is not queued yet: worker 'w1' declined it (accept=), and it is offered again at "
            f"2023-11-14 22:14:20 UTC, in 60 s; `treadle jobs run-now {job.id}` queues it at once."
        )
    clock.advance(61)
    await app.storage.heartbeat(present("w2"), [], 30)
    assert await app.jobs.explain(job) == (
        "It is next in its queue again, after worker 'w1' declined it (accept=); a worker of 'default' will claim it "
        "shortly. It has waited since 2023-11-14 22:14:20 UTC."
    )
    async with work(app, name="w2"):
        await job.result(timeout=30)
    assert "declined" not in await app.jobs.explain(job)


@shows("`explain` names the worker that gathers the job for a batch")
async def test_an_item_that_a_worker_gathers_for_a_batch(app: App, spy: Spy) -> None:
    called, go = asyncio.Event(), asyncio.Event()

    @app.batch(name="t", size=2, max_wait=1000)
    async def t(items: list[int]) -> list[int]:
        called.set()
        await go.wait()
        return items

    async with work(app, name="w1"):
        first = await t.enqueue(1)
        said = await say(app, spy, first, "gathers")
        assert said.startswith(
            "Worker 'w1' gathers it with other jobs of 't' for one call, which begins when the batch is full, "
            "or at 2023-"
        )
        second = await t.enqueue(2)
        await called.wait()
        await app.storage.heartbeat(present("w1"), [], 30)
        assert "It has been running on w1 since" in await app.jobs.explain(second)
        go.set()
        await first.result(timeout=30)


async def test_explain_counts_nothing_if_the_row_has_the_reason(app: App, spy: Spy) -> None:
    @app.task(name="t", limits=["api"])
    async def t() -> None: ...

    await app.limits.set(Limit("api", slots=0))
    blocked, later = await t.enqueue(), await t.options(delay=60).enqueue()
    await app.storage.claim(Claim(worker="w1#1"))
    waits, ended = await t.options(after=later).enqueue(), await t.options(delay=60).enqueue()
    await app.jobs.cancel(ended)
    for job, words in ((blocked, "is paused"), (later, "it is due"), (waits, "It waits"), (ended, "was cancelled")):
        assert words in await app.jobs.explain(job)
    assert spy.calls["stats"] == 0


@shows("`explain` names the parent that occupies the slot its own child needs")
async def test_a_slot_that_the_parent_of_a_job_holds(app: App, spy: Spy) -> None:
    """A run that waits for the result of a job it enqueued keeps its slot: with no other, neither continues."""

    @app.task(name="child")
    async def child() -> str:
        return "done"

    made = asyncio.Queue[Any]()

    @app.task(name="parent")
    async def parent() -> str:
        made.put_nowait(job := await child.enqueue())
        return await job.result(timeout=30)

    job = await parent.enqueue()
    async with work(app, concurrency=1):
        its_child = await made.get()
        expected = (
            "It is next in its queue; all slots of the only worker that can run it are taken, one of them by its "
            f"own parent, parent {job.id}: if that run waits for it, neither can continue (use `after=`, which takes "
            "no slot, or give the limit more slots)."
        )
        assert await say(app, spy, its_child, "parent") == expected
        async with work(app, concurrency=1):
            assert await job.result(timeout=30) == "done"


@shows("`explain` names the parent that occupies the slot of the limit its child needs")
@pytest.mark.parametrize("key", ["api", "queue:default"])
async def test_a_slot_of_a_limit_that_the_parent_of_a_job_holds(app: App, spy: Spy, key: str) -> None:
    @app.task(name="child", limits=["api"])
    async def child() -> None: ...

    go, made = asyncio.Event(), asyncio.Queue[Any]()

    @app.task(name="parent", limits=["api"])
    async def parent() -> None:
        made.put_nowait(await child.enqueue())
        await go.wait()

    await app.limits.set(Limit(key, slots=1))
    job = await parent.enqueue()
    async with work(app, concurrency=4):
        its_child = await made.get()
        expected = f"The limit '{key}' has 1 of 1 slots in use, one of them by its own parent, parent {job.id}: if"
        assert (await say(app, spy, its_child, "own parent")).startswith(expected)
        go.set()
        await its_child.ended(timeout=30)


@shows("`explain` names a limit of zero and the command that changes it")
@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        (Limit("api", slots=0), "The limit 'api' is paused (0 slots): `treadle limits resume api` resumes it."),
        (Limit("queue:q", slots=0), "Its queue 'q' is paused (0 slots): `treadle queues resume q` resumes it."),
        (
            Limit("api", rate=0),
            "The limit 'api' lets no job start because its rate is 0: `treadle limits set api --rate 1 --per 1` "
            "lets one start.",
        ),
        (
            Limit("queue:q", rate=0),
            "Its queue 'q' lets no job start because its rate is 0: `treadle limits set queue:q --rate 1 --per 1` "
            "lets one start.",
        ),
    ],
    ids=lambda found: f"{found.name} {found.slots}" if isinstance(found, Limit) else "",
)
async def test_explain_names_a_limit_of_zero_and_the_remedy(app: App, rule: Limit, sentence: str) -> None:
    @app.task(name="t", queue="q", limits=["api"])
    async def t() -> None: ...

    await (await app.open()).set_limits([rule])
    job = await t.enqueue()
    await app.storage.heartbeat(present(queue="q"), [], 30)
    await app.storage.claim(Claim(worker="w1#1", queues=(("q", 9),), limit=9, lease=9999))
    assert await app.jobs.explain(job) == sentence
    await app.release()


class Racing(Spy):
    """Lets a worker claim the job while the surroundings of the job are read."""

    racing: Any = None

    async def glance(self, *words: Any) -> Any:
        found = await super().glance(*words)
        if self.racing is not None:
            racing, self.racing = self.racing, None
            await racing()
        return found


@shows("`explain` reads a job again if it changes while its surroundings are read")
async def test_a_job_that_starts_meanwhile(app: App, spy: Spy, clock: HandClock) -> None:
    @app.task(name="t")
    async def t() -> None: ...

    storage = Racing(spy)
    racing_app = App(storage=storage, clock=clock)
    job = await t.options(id="a").enqueue()
    await app.storage.heartbeat(present(slots=1), [], 30)

    async def starts() -> None:
        await app.storage.claim(Claim(worker="w1#1", lease=30))

    storage.racing = starts
    async with racing_app:
        said = await racing_app.jobs.explain(job.id)
    assert said == "It has been running on w1 since 2023-11-14 22:13:20 UTC; its lease lasts another 30 s."


@shows("`explain` judges by the storage's clock, not by that of its own process")
async def test_a_process_whose_clock_is_wrong(app: App, spy: Spy, clock: HandClock) -> None:
    @app.task(name="t")
    async def t() -> None: ...

    job = await t.options(id="a", delay=60, expires=300).enqueue()
    async with App(storage=spy, clock=HandClock(clock() + 1000)) as ahead:
        assert await ahead.jobs.explain(job.id) == await app.jobs.explain(job)
