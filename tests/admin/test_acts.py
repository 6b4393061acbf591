"""Acts on many jobs, and two people who act at the same time: each call counts what it did, on every storage."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import pytest

from tests.kit import Spy, Told
from treadle import App, Retry, StorageUnavailable
from treadle.admin.acts import GROUP
from treadle.core.model import Claim, NewJob, Outcome, Record, Settled, State
from treadle.testing import HandClock

Act = Callable[[App], Awaitable[int]]


class Between(Spy):
    """The storage as a second person sees it. `then` runs before the first settle. With `twice` each settle is
    repeated, as after a lost answer."""

    then: Callable[[], Awaitable[object]] | None = None
    twice = False

    async def open(self) -> None:
        """Does nothing: `app` opens and closes the storage."""

    close = open

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        if self.then is not None:
            then, self.then = self.then, None
            await then()
        if self.twice:
            await super().settle(outcomes)
        return await super().settle(outcomes)


@pytest.fixture
def between(spy: Spy) -> Between:
    return Between(spy.inner)


@pytest.fixture
def person(between: Between, clock: HandClock) -> App:
    """A second person's app on the same jobs. `app` opens the storage."""
    return App(storage=between, clock=clock)


async def jobs_of(app: App, many: int, state: str = "ready") -> None:
    """Store this many jobs in a queue of their own: queued, due later, or dead."""

    @app.task(name="work", queue="many", retry=Retry(attempts=1))
    async def work() -> None:
        raise ValueError

    await app.enqueue([work.options(delay=60 if state == "delayed" else 0).job() for _ in range(many)])
    if state == "failed":
        rows = (await app.storage.claim(Claim(worker="w#1", queues=(("many", many),), limit=many))).records
        await app.storage.settle([failed(row) for row in rows])


def failed(row: Record) -> Outcome:
    return Outcome(id=row.id, version=row.version, state=State.FAILED, attempt=1, reason="error", error="boom")


ACTS: dict[str, tuple[str, Act]] = {
    "cancel": ("ready", lambda app: app.jobs.cancel(queue="many")),
    "run_now": ("delayed", lambda app: app.jobs.run_now(queue="many")),
    "retry": ("failed", lambda app: app.jobs.retry(queue="many")),
    "dead.retry": ("failed", lambda app: app.dead.retry(queue="many")),
    "dead.retry some": ("failed", lambda app: app.dead.retry(queue="many", limit=20)),
    "delete": ("failed", lambda app: app.jobs.delete(queue="many")),
    "purge": ("failed", lambda app: app.dead.purge(queue="many")),
}


@pytest.mark.parametrize("name", ACTS)
async def test_concurrent_acts_of_two_people_are_counted_once(
    app: App, person: App, between: Between, told: Told, name: str
) -> None:
    """Both have read the same rows. The first call reports all jobs, the second, which is too late, none."""
    state, act = ACTS[name]
    await jobs_of(app, 20, state)
    first: list[int] = []

    async def other() -> None:
        first.append(await act(app))

    between.then = other
    assert (await act(person), first) == (0, [20])
    assert len(told.of("cancelled")) == (20 if name == "cancel" else 0)
    if state == "failed" and "retry" in name:
        rows = (await app.jobs.list(queue="many")).records
        assert {row.reopenings for row in rows} == {1}


@pytest.mark.parametrize("name", ACTS)
async def test_a_call_that_is_repeated_after_a_lost_answer_counts(
    app: App, person: App, between: Between, name: str
) -> None:
    state, act = ACTS[name]
    await jobs_of(app, 20, state)
    between.twice = True
    assert await act(person) == 20
    assert await act(person) == 0


@pytest.mark.parametrize("name", ["cancel", "retry", "run_now", "delete"])
async def test_many_are_acted_on_in_groups_and_again_where_it_was_interrupted(
    app: App, person: App, between: Between, name: str
) -> None:
    """Hundreds of jobs take a few calls. An interrupted act reports what it did, and repeating it continues there."""
    state, _ = ACTS[name]
    many = GROUP * 2 + 10
    await jobs_of(app, many, state)
    looked: list[int] = []
    act = getattr(person.jobs, name)

    def reported(so_far: int) -> None:
        looked.append(so_far)
        between.away["settle"] = 1 if len(looked) == 1 else 0

    with pytest.raises(StorageUnavailable):
        await act(queue="many", progress=reported)
    assert looked == [GROUP]
    between.calls.clear()
    assert await act(queue="many", progress=looked.append) == many - GROUP
    assert between.calls["settle"] <= 3
    assert between.calls["find"] <= 4


async def test_cancel_reaches_the_children_of_a_run_that_ends_meanwhile(
    app: App, person: App, between: Between
) -> None:
    """The parent was running when the act read it, and has children when its settlement is applied."""
    await app.storage.enqueue([NewJob(id="parent", task="t")])
    [row] = (await app.storage.claim(Claim(worker="w#1"))).records
    children = tuple(NewJob(id=f"child{n}", task="t", root="parent", parent="parent") for n in range(20))

    async def run_ends() -> None:
        after = tuple(child.id for child in children)
        out = Outcome(
            id="parent", version=row.version, state=State.WAITING, followups=children, after=after, function_done=True
        )
        [answer] = await app.storage.settle([out])
        assert answer.status == "applied"

    between.then = run_ends
    assert await person.jobs.cancel("parent") == 21
    left = await app.jobs.list(state=("waiting", "ready", "running"), count=True)
    assert left.total == 0


async def test_cancel_reaches_the_grandchildren_of_a_child_that_ends_meanwhile(
    app: App, person: App, between: Between
) -> None:
    await app.storage.enqueue([NewJob(id="parent", task="t")])
    [row] = (await app.storage.claim(Claim(worker="w#1"))).records
    child = NewJob(id="child", task="t", root="parent", parent="parent")
    waits = {"state": State.WAITING, "function_done": True}
    out = Outcome(id="parent", version=row.version, followups=(child,), after=("child",), **waits)
    await app.storage.settle([out])
    [row] = (await app.storage.claim(Claim(worker="w#2"))).records
    last = NewJob(id="last", task="t", root="parent", parent="child")

    async def child_ends() -> None:
        await app.storage.settle(
            [Outcome(id="child", version=row.version, followups=(last,), after=("last",), **waits)]
        )

    between.then = child_ends
    assert await person.jobs.cancel("parent") == 3
    rows = await app._core.client.get(["parent", "child", "last"])
    assert {row.state for row in rows if row} == {State.CANCELLED}


async def test_a_cancel_that_stopped_half_way_down_is_finished_by_the_next(
    app: App, person: App, clock: HandClock
) -> None:
    """The parent is cancelled and its children are not: cancelling it again cancels them."""
    await app.storage.enqueue([NewJob(id="parent", task="t")])
    [row] = (await app.storage.claim(Claim(worker="w#1"))).records
    child = NewJob(id="child", task="t", root="parent", parent="parent")
    out = Outcome(
        id="parent", version=row.version, state=State.WAITING, followups=(child,), after=("child",), function_done=True
    )
    await app.storage.settle([out])
    assert await person.jobs.cancel("parent", tree=False) == 1
    assert await person.jobs.cancel("parent") == 1
    assert await person.jobs.cancel("parent") == 0
