"""Reading jobs and acting on them: `app.jobs`, `app.dead`, `app.queues`, `app.limits`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.kit import Spy, Told, presences, work
from treadle import (
    Abort,
    App,
    BadOption,
    IdTaken,
    JobFailed,
    Key,
    KeyHeld,
    Limit,
    Retry,
    Stale,
    State,
    UnknownJob,
    UnknownUpstream,
    all_done,
    at_least,
    current,
)
from treadle.core.clock import moment
from treadle.core.model import Claim
from treadle.testing import HandClock, drain
from treadle_testkit.shows import shows


async def ids(app: App, **filters: Any) -> list[str]:
    return [row.job.id for row in (await app.jobs.list(**filters)).records]


@shows("`app.jobs.list` filters by task, queue, label, state, time, id and workflow")
async def test_lists_are_narrowed_by_every_filter(app: App, clock: HandClock) -> None:
    @app.task(name="a")
    async def a() -> None: ...

    @app.task(name="b", queue="other")
    async def b() -> None: ...

    await a.options(id="a1", labels=["user=1"]).enqueue()
    clock.advance(10)
    await a.options(id="a2", delay=5).enqueue()
    await b.options(id="b1", labels={"user": 1}, after="a1").enqueue()
    assert await ids(app) == ["b1", "a2", "a1"]
    assert await ids(app, order="oldest", task=a) == ["a1", "a2"]
    assert await ids(app, task="b") == ["b1"]
    assert await ids(app, queue="other") == ["b1"]
    assert await ids(app, label="user=1") == ["b1", "a1"]
    assert await ids(app, state="waiting") == ["b1"]
    assert await ids(app, state=[State.READY, "running"]) == ["a2", "a1"]
    assert await ids(app, before=moment(clock() - 5)) == ["a1"]
    assert await ids(app, ids=["a1", "b1"]) == ["b1", "a1"]
    assert await ids(app, workflow="a1") == ["a1"]
    assert await ids(app, order="queue") == ["a1"]
    assert (await app.jobs.list(limit=0, count=True)).total == 3


async def test_pages_show_each_row_once(app: App) -> None:
    @app.task
    async def t() -> None: ...

    await app.enqueue(t.options(id=f"j{n:02}").job() for n in range(25))
    seen: list[str] = []
    cursor = None
    while True:
        page = await app.jobs.list(limit=7, cursor=cursor)
        seen += [row.job.id for row in page.records]
        cursor = page.cursor
        if cursor is None:
            break
    assert seen == [f"j{n:02}" for n in reversed(range(25))]
    assert [row.job.id async for row in app.jobs.iterate()] == sorted(seen)


@pytest.mark.parametrize(
    "filters",
    [
        {"colour": "red"},
        {"state": "dead"},
        {"before": 5},
        {"limit": -1},
        {"limit": 10_001},
        {"cursor": "nonsense"},
    ],
)
async def test_an_invalid_filter_is_refused(app: App, filters: dict[str, Any]) -> None:
    with pytest.raises(BadOption):
        await app.jobs.list(**filters)


@shows("an act needs a job or a filter, and an unknown id raises `UnknownJob`")
async def test_acting_needs_a_job_or_a_filter(app: App) -> None:
    for act in (app.jobs.cancel, app.jobs.retry, app.jobs.run_now, app.jobs.delete):
        with pytest.raises(BadOption, match="a job or an id"):
            await act()
        with pytest.raises(BadOption, match="a job or an id"):
            await act("x", task="t")
        with pytest.raises(UnknownJob):
            await act("nobody")


async def test_cancel_frees_the_key_and_cancels_the_jobs_that_wait(app: App, told: Told) -> None:
    @app.task
    async def t() -> None: ...

    first = await t.options(key="k", delay=60).enqueue()
    down = await t.options(after=first).enqueue()
    assert await t.options(key="k").enqueue() == first
    assert await app.jobs.cancel(first) == 1
    assert await app.jobs.cancel(first) == 0
    assert (await app.jobs.get(down)).reason == "upstream"
    assert await t.options(key="k").enqueue() != first
    assert [event.id for event in told.of("cancelled")] == [first.id]


async def test_acts_take_a_filter(app: App, clock: HandClock) -> None:
    @app.task(retry=Retry(attempts=1))
    async def t(n: int) -> None:
        raise Abort("never")

    await app.enqueue(t.options(labels=["all"], delay=60).job(n) for n in range(5))
    assert await app.jobs.run_now(label="all") == 5
    async with work(app):
        rows = (await app.jobs.list(label="all")).records
        await asyncio.gather(*[(await app.jobs.handle(row)).ended(timeout=30) for row in rows])
    assert len((await app.dead.list(task=t)).records) == 5
    assert await app.dead.retry(label="all") == 5
    assert await app.jobs.cancel(label="all") == 5
    assert await app.jobs.retry(label="all") == 0
    assert await app.jobs.retry(label="all", state="cancelled") == 5
    assert await app.jobs.cancel(label="all") == 5
    assert await app.jobs.delete(label="all") == 5
    assert await app.dead.purge(label="all") == 0


@shows("a retried job starts again at attempt 1; a job that succeeded raises `Stale`")
async def test_retry_starts_a_new_round_of_attempts(app: App, clock: HandClock) -> None:
    attempts: list[int] = []

    @app.task(retry=Retry(attempts=1))
    async def t() -> str:
        attempts.append(current().attempt)
        if len(attempts) == 1:
            raise ValueError
        return "better"

    async with work(app):
        job = await t.enqueue()
        with pytest.raises(JobFailed):
            await job.result(timeout=30)
        assert await app.jobs.retry(job) == 1
        assert await job.result(timeout=30) == "better"
        with pytest.raises(Stale, match="succeeded"):
            await app.jobs.retry(job)
        with pytest.raises(Stale, match="succeeded"):
            await app.jobs.run_now(job)
    assert attempts == [1, 1]
    assert (await app.jobs.get(job)).reopenings == 1


async def test_retry_of_a_job_whose_key_is_held_names_the_holder(app: App) -> None:
    @app.task
    async def t() -> None: ...

    old = await t.options(key="my key").enqueue()
    await app.jobs.cancel(old)
    new = await t.options(key="my key").enqueue()
    with pytest.raises(KeyHeld) as caught:
        await app.jobs.retry(old)
    assert (caught.value.key, caught.value.id) == ("my key", new.id)


@shows("only a job that has ended can be deleted")
async def test_delete_needs_an_ended_job(app: App, clock: HandClock) -> None:
    @app.task
    async def t() -> None: ...

    job = await t.enqueue()
    with pytest.raises(Stale, match="cancel it first"):
        await app.jobs.delete(job)
    await app.jobs.cancel(job)
    assert await app.jobs.delete(job) == 1
    clock.advance(61)
    assert await app.storage.prune(10) == 1
    with pytest.raises(UnknownJob):
        await app.jobs.get(job)


async def test_arguments_can_be_read_with_the_code_and_without(app: App) -> None:
    @app.task(name="t")
    async def t(n: set[int], *, more: str = "") -> None: ...

    @app.task(pass_result=True)
    async def after(found: int, n: int) -> None: ...

    rows = [
        await app.jobs.get(await t.enqueue({1}, more="x")),
        await app.jobs.get(await app.stub("else.where").enqueue(1, more="x")),
        await app.jobs.get(await app.stub("else.where").enqueue(1)),
        await app.jobs.get(await after.options(delay=1).enqueue(5)),  # type: ignore[call-arg]
    ]
    assert [app.jobs.arguments(row) for row in rows] == [
        (({1},), {"more": "x"}),
        ((1,), {"more": "x"}),
        ((1,), {}),
        ((5,), {}),
    ]


async def test_a_paused_queue_starts_no_job_until_it_is_resumed(app: App, told: Told) -> None:
    @app.task(queue="mail")
    async def t() -> None: ...

    await app.queues.pause("mail")
    async with work(app, poll=3600):
        job = await t.enqueue()
        paused = "Its queue 'mail' is paused: `treadle queues resume mail` resumes it."
        assert (await app.jobs.explain(job)).startswith(paused)  # the worker may not have sent a heartbeat yet
        assert (await app.jobs.get(job)).state is State.READY
        await app.queues.resume("mail")
        await job.result(timeout=30)
    stats = await app.queues.stats()
    assert [(count.queue, count.state, count.jobs) for count in stats.counts] == [("mail", State.SUCCEEDED, 1)]


async def test_limits_act_at_once(app: App) -> None:
    running, most, both, go = 0, 0, asyncio.Event(), asyncio.Event()

    @app.task(limits=["smtp"])
    async def t() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 2:
            both.set()
        await go.wait()
        running -= 1

    await app.limits.set(Limit("smtp", slots=2))
    async with work(app):
        jobs = await app.enqueue(t.job() for _ in range(6))
        await both.wait()
        [use] = await app.limits.list()
        assert (use.key, use.rule.slots) == ("smtp", 2)
        go.set()
        await asyncio.gather(*(job.result(timeout=30) for job in jobs))
    assert most == 2
    await app.limits.set(Limit("smtp"))
    assert list(await app.limits.list()) == []


async def test_wrong_limits_are_refused_and_nothing_is_set(app: App) -> None:
    with pytest.raises(BadOption, match="slots"):
        await app.limits.set(Limit("good", slots=1), Limit("bad", slots=-1))
    assert list(await app.limits.list()) == []


# --- options that only the storage can show


@shows("`after=` takes jobs, specs and ids", area="Dependencies and promises")
async def test_after_takes_jobs_specs_and_ids(app: App) -> None:
    @app.task
    async def t(n: int = 0) -> int:
        return n

    up, spec = await t.enqueue(1), t.job(2)
    jobs = await app.enqueue(spec, t.options(after=[up, spec, up.id]).job(3))
    async with work(app):
        assert await jobs[1].result(timeout=30) == 3
    assert (await app.jobs.get(jobs[1])).after == (up.id, spec.id)


@shows(
    "an unknown upstream is an error, unless `wait_timeout=` says how long to wait for it",
    area="Dependencies and promises",
)
async def test_an_unknown_upstream_is_an_error_unless_it_is_waited_for(app: App, clock: HandClock) -> None:
    @app.task
    async def t() -> int:
        return 1

    with pytest.raises(UnknownUpstream, match="later"):
        await t.options(after="later").enqueue()
    job = await t.options(after="later", wait_timeout=30).enqueue()
    hopeless = await t.options(after="never", wait_timeout=30).enqueue()
    async with work(app):
        await t.options(id="later").enqueue()
        assert await job.result(timeout=30) == 1
        clock.advance(31)
        with pytest.raises(JobFailed, match="did not come in time"):
            await hopeless.result(timeout=30)


@shows(
    "`when=` starts a job when all upstreams have ended or when some have succeeded", area="Dependencies and promises"
)
async def test_when_sets_how_many_upstreams_must_end(app: App) -> None:
    @app.task(retry=Retry(attempts=1))
    async def part(n: int) -> int:
        if n == 0:
            raise ValueError
        return n

    @app.task
    async def whole() -> str:
        return "ran"

    parts = await app.enqueue(part.job(n) for n in range(3))
    strict = await whole.options(after=parts).enqueue()
    done, two = await app.enqueue(whole.job(), whole.job(), after=parts, when=all_done())
    some = await whole.options(after=parts, when=at_least(2)).enqueue()
    async with work(app):
        assert await some.result(timeout=30) == await done.result(timeout=30) == await two.result(timeout=30) == "ran"
        assert (await strict.ended(timeout=30)).reason == "upstream"


async def test_after_given_twice_is_refused(app: App) -> None:
    @app.task
    async def t() -> None: ...

    up = await t.enqueue()
    with pytest.raises(BadOption, match="already has an after="):
        await app.enqueue(t.options(after=up).job(), after="x")
    with pytest.raises(BadOption, match="after="):
        await app.enqueue(t.job(), when=all_done())


@shows(
    "an enqueue with a held key returns the holder, raises `KeyHeld` or replaces the holder, as `conflict=` says",
    area="Keys and ids",
)
async def test_keys_keep_raise_and_replace(app: App) -> None:
    @app.task
    async def t(n: int = 0) -> None: ...

    first = await t.options(key="k", delay=60).enqueue()
    assert await t.options(key=Key("k")).enqueue(1) == first
    with pytest.raises(KeyHeld) as caught:
        await t.options(key=Key("k", conflict="raise")).enqueue()
    assert (caught.value.key, caught.value.id) == ("k", first.id)
    second = await t.options(key=Key("k", conflict="replace"), delay=60).enqueue()
    assert second != first
    row = await app.jobs.get(first)
    assert (row.state, row.reason) == (State.CANCELLED, "superseded")
    assert (await app.jobs.list(task=t, limit=0, count=True)).total == 2


async def test_replace_waits_for_one_that_runs(app: App) -> None:
    began, go, ran = asyncio.Event(), asyncio.Event(), list[int]()

    @app.task
    async def t(n: int) -> None:
        began.set()
        await go.wait()
        ran.append(n)

    async with work(app):
        await t.options(key="k").enqueue(1)
        await began.wait()
        second = await t.options(key=Key("k", conflict="replace")).enqueue(2)
        assert (await app.jobs.get(second)).state is State.WAITING
        go.set()
        await second.result(timeout=30)
    assert ran == [1, 2]


@shows("a key belongs to its task unless it is shared", area="Keys and ids")
async def test_a_key_belongs_to_its_task_unless_it_is_shared(app: App, clock: HandClock) -> None:
    @app.task(name="a")
    async def a() -> None: ...

    @app.task(name="b")
    async def b() -> None: ...

    assert await a.options(key="k").enqueue() != await b.options(key="k").enqueue()
    shared = Key("k", shared=True)
    assert await a.options(key=shared).enqueue() == await b.options(key=shared).enqueue()
    within = await a.options(key=Key("w", window=100)).enqueue()
    await app.jobs.cancel(within)
    assert await a.options(key=Key("w", window=100)).enqueue() == within
    clock.advance(101)
    assert await a.options(key=Key("w", window=100)).enqueue() != within


async def test_a_key_until_started_is_free_once_the_job_starts(app: App) -> None:
    began, go = asyncio.Event(), asyncio.Event()

    @app.task(key=Key("k", until="started"))
    async def t() -> None:
        began.set()
        await go.wait()

    async with work(app, concurrency=1):
        first = await t.enqueue()
        await began.wait()
        second = await t.enqueue()
        assert second != first
        assert await t.enqueue() == second
        go.set()
        await second.result(timeout=30)


@shows("a chosen id is used once, and other arguments under it raise `IdTaken`", area="Keys and ids")
async def test_an_id_is_once_for_ever(app: App) -> None:
    @app.task
    async def t(n: int) -> int:
        return n

    async with work(app):
        job = await t.options(id="order:1").enqueue(1)
        assert await job.result(timeout=30) == 1
        again = await t.options(id="order:1").enqueue(1)
        assert await again.result(timeout=30) == 1
        with pytest.raises(IdTaken):
            await t.options(id="order:1").enqueue(2)
    assert len((await app.jobs.list()).records) == 1


@shows("`app.enqueue` stores all of its jobs or none", area="Enqueuing jobs")
async def test_enqueue_is_all_or_nothing(app: App) -> None:
    @app.task
    async def t() -> None: ...

    with pytest.raises(UnknownUpstream):
        await app.enqueue(t.job(), t.options(after="nobody").job())
    assert (await app.jobs.list()).records == ()
    assert await app.enqueue() == []
    with pytest.raises(BadOption, match=r"task\.job"):
        await app.enqueue([t])  # type: ignore[list-item]


@shows("`current()` gives a task its id, attempt, labels, headers and deadline", area="Workers")
async def test_a_task_reads_the_facts_of_its_own_job(app: App) -> None:
    seen: list[Any] = []

    @app.task(name="t", labels=["x"], headers={"trace": "7"})
    async def t() -> None:
        here = current()
        seen.append(
            (
                here.id,
                here.task,
                here.attempt,
                here.lost,
                here.version,
                here.workflow,
                here.parent,
                here.after,
                here.deadline,
                dict(here.headers),
                here.labels,
            )
        )

    async with work(app):
        up = await t.enqueue()
        await up.result(timeout=30)
        job = await t.options(after=up, deadline=moment(2_000_000_000)).enqueue()
        await job.result(timeout=30)
    assert seen[0] == (up.id, "t", 1, 0, 1, up.id, None, (), None, {"trace": "7"}, ("x",))
    assert seen[1][7:9] == ((up.id,), moment(2_000_000_000))


@shows("`keep=` and `keep_failed=` say how long an ended job stays", area="Retention")
async def test_keep_sets_how_long_the_row_stays(app: App, clock: HandClock) -> None:
    @app.task(keep=100, keep_failed=500, retry=Retry(attempts=1))
    async def t(fail: bool) -> None:
        if fail:
            raise ValueError

    async with work(app):
        good, bad = await t.enqueue(False), await t.enqueue(True)
        await asyncio.gather(good.ended(timeout=30), bad.ended(timeout=30))
    clock.advance(101)
    assert await app.storage.prune(10) == 1
    assert (await app.jobs.get(bad)).state is State.FAILED
    clock.advance(400)
    assert await app.storage.prune(10) == 1


# --- why a job does not run


@shows("`app.jobs.explain` has a sentence for each state of a job", area="Explanations")
async def test_explain_has_a_sentence_for_every_state(app: App, spy: Spy, clock: HandClock) -> None:
    gate, began = asyncio.Event(), asyncio.Event()

    @app.task(name="t", retry=Retry(base=60))
    async def t(how: str = "") -> None:
        if how == "fail":
            raise ValueError("x")
        if how == "abort":
            raise Abort("no good")
        began.set()
        await gate.wait()

    async def says(job: Any) -> str:
        sentence = await app.jobs.explain(job)
        assert sentence.endswith(".")
        assert "\n" not in sentence
        return sentence

    later, first = await t.options(delay=90, id="later").enqueue(), await t.enqueue()
    assert "not queued yet: it is due at 2023-11-14 22:14:50 UTC, in 90 s" in await says(later)
    assert "no worker serves its queue 'default'" in await says(first)
    waits = await t.options(after=[later, "stranger"], wait_timeout=600).enqueue()
    assert "2 more jobs must end, of later and stranger" in (await says(waits)).replace(", stranger", " and stranger")
    assert "; not stored yet: stranger" in await says(waits)
    async with work(app, concurrency=1, name="w1"):
        await began.wait()
        assert "It has been running on w1 since" in await says(first)
        second, third = await t.enqueue(), await t.enqueue()
        await spy.until(lambda: presences(app.storage), "the worker's first heartbeat")
        assert "all slots of the only worker" in await says(second)
        assert "behind 1 job in" in await says(third)
        await app.limits.set(Limit("smtp", slots=0))
        gate.set()
        blocked_on = await t.options(limits=["smtp"]).enqueue()
        failing, aborting = await t.enqueue("fail"), await t.enqueue("abort")
        await aborting.ended(timeout=30)
        assert "attempt 1 failed and the next one is due" in await says(failing)
        assert "It failed (aborted)" in await says(aborting)
        assert "no good" in await says(aborting)
        assert "'smtp' is paused" in await says(blocked_on)
        assert "It succeeded at" in await says(first)
    await app.limits.set(Limit("smtp", slots=3))
    await app.storage.claim(Claim(worker="x#1", queues=(("none", 1),)))
    await app.jobs.cancel(later)
    assert "It was cancelled (asked)" in await says(later)
    assert "It was cancelled (upstream)" in await says(waits)


@shows("an act that does not fit raises `Stale` with the state of the job")
async def test_an_act_that_does_not_fit_names_the_state_the_job_is_in(app: App) -> None:
    @app.task(retry=Retry(attempts=1))
    async def t(fails: bool = False) -> None:
        if fails:
            raise ValueError("no")

    done, failed, gone, far = await app.enqueue(t.job(), t.job(True), t.job(), t.options(delay=3600).job())
    await app.jobs.cancel(gone)
    waiting = await t.options(after=far).enqueue()
    await drain(app)
    for job, state in ((done, "succeeded"), (failed, "failed"), (gone, "cancelled"), (waiting, "waiting")):
        with pytest.raises(Stale, match=state):
            await app.jobs.run_now(job)
    for job, state in ((done, "succeeded"), (waiting, "waiting"), (far, "ready")):
        with pytest.raises(Stale, match=state):
            await app.jobs.retry(job)


@shows("a running job cannot be deleted and runs on")
async def test_a_running_job_is_not_deleted(app: App) -> None:
    began, go = asyncio.Event(), asyncio.Event()

    @app.task
    async def t() -> str:
        began.set()
        await go.wait()
        return "whole"

    async with work(app):
        job = await t.enqueue()
        await began.wait()
        with pytest.raises(Stale, match="running: cancel it first"):
            await app.jobs.delete(job)
        assert (await app.jobs.get(job)).state is State.RUNNING
        go.set()
        assert await job.result(timeout=30) == "whole"


@shows("a task can list other jobs and read their results", area="Workers")
async def test_a_task_reads_other_jobs_and_their_results(app: App) -> None:
    @app.task(name="up")
    async def up(n: int) -> int:
        return n

    @app.task(name="look")
    async def look(other: str) -> tuple[str, str, str | None]:
        row = await app.jobs.get(other)
        assert [each.job.id for each in (await app.jobs.list(task="up")).records] == [other]
        return row.job.task, str(row.state), row.result

    async with work(app):
        other = await up.enqueue(7)
        assert await other.result(timeout=30) == 7
        assert await (await look.enqueue(other.id)).result(timeout=30) == ("up", "succeeded", "7")


@shows(
    "an enqueue with a held key never merges arguments: the holder keeps its own or is replaced", area="Keys and ids"
)
async def test_an_enqueue_with_a_held_key_leaves_the_holders_arguments(app: App) -> None:
    ran: list[int] = []

    @app.task(retry=Retry(attempts=1))
    async def t(n: int) -> int:
        ran.append(n)
        return n

    kept = await t.options(key=Key("kept")).enqueue(1)
    assert await t.options(key=Key("kept")).enqueue(2) == kept
    old = await t.options(key=Key("new", conflict="replace")).enqueue(3)
    new = await t.options(key=Key("new", conflict="replace")).enqueue(4)
    async with work(app):
        assert [await job.result(timeout=30) for job in (kept, new)] == [1, 4]
    assert sorted(ran) == [1, 4]
    assert (await app.jobs.get(old)).reason == "superseded"
