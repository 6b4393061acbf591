"""Golden span trees of jobs on every storage. `trees.py` explains the texts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.integrations.otel.trees import Recorded
from treadle import Abort, App, JobSpec, Key, KeyHeld, Retry, State, chain, current, flow
from treadle.testing import HandClock, drain
from treadle_testkit.shows import shows

ONCE = Retry(attempts=2, base=0, jitter=0)


@pytest.fixture
def recorded(app: App) -> Recorded:
    found = Recorded()
    found.on(app)
    return found


@pytest.fixture
def leaf(app: App) -> Any:
    @app.task(name="leaf")
    async def leaf(*_: Any) -> None: ...

    return leaf


@shows("OpenTelemetry: a job, its run, its children and their runs are one trace, with the sender's span at its root")
async def test_a_view_its_job_and_the_children_of_that(app: App, recorded: Recorded, leaf: Any) -> None:
    @app.task(name="parent", queue="mail")
    async def parent() -> JobSpec[Any]:
        with recorded.tracer.start_as_current_span("own span"):
            await leaf.enqueue()
        return leaf.job()  # type: ignore[no-any-return]

    with recorded.tracer.start_as_current_span("view"):
        job = await parent.enqueue()
    await drain(app)
    ran = recorded.named("run parent").attributes or {}
    assert ran["messaging.message.id"] == ran["messaging.message.conversation_id"] == job.id
    assert ran["messaging.client.id"]
    assert ran["treadle.waited"] == 0.0
    recorded.check(
        """
        view
          enqueue mail [send, mail]
            run parent [process, mail, waiting]
              own span
                enqueue default [send, default]
                  run leaf [process, default, succeeded]
              enqueue default [send, default]
                run leaf [process, default, succeeded]
        """,
        "messaging.operation.type",
        "messaging.destination.name",
        "treadle.outcome",
    )


@shows("OpenTelemetry: the jobs of flows and chains belong to the trace of the call that sent them")
async def test_jobs_of_flows_and_chains_belong_to_the_trace_of_their_call(
    app: App, recorded: Recorded, leaf: Any
) -> None:
    await app.enqueue(flow(leaf.job(), leaf.job()).then(leaf.job()))
    await app.enqueue(chain(leaf.job(), leaf.job()))
    await drain(app)
    assert [
        span.attributes["messaging.batch.message_count"] for span in recorded.spans if span.name == "enqueue default"
    ]  # type: ignore[index]
    recorded.check("""
        enqueue default
          run leaf
          run leaf
          run leaf
        enqueue default
          run leaf
          run leaf
    """)


@shows("OpenTelemetry: a retry that is due within a minute belongs to the trace; a later one has its own, with links")
@pytest.mark.parametrize("delay", [5, 300])
async def test_a_retry_within_a_minute_belongs_to_the_trace(
    app: App, recorded: Recorded, clock: HandClock, delay: float
) -> None:
    @app.task(name="flaky", retry=Retry(attempts=3, base=delay, factor=1, jitter=0))
    async def flaky() -> None:
        if current().attempt < 3:
            raise ConnectionError("no route")

    await flaky.enqueue()
    for _ in range(3):
        await drain(app)
        clock.advance(delay + 1)
    soon = """
        enqueue default
          run flaky [1, retrying] > ConnectionError
          run flaky [2, retrying] <- previous run flaky > ConnectionError
          run flaky [3, succeeded] <- previous run flaky
    """
    late = """
        enqueue default
          run flaky [1, retrying] > ConnectionError
        run flaky [2, retrying] <- enqueue default, previous run flaky > ConnectionError
        run flaky [3, succeeded] <- enqueue default, previous run flaky
    """
    links = [list(span.links) for span in recorded.spans if span.name == "run flaky"]
    events = [event for span in recorded.spans for event in span.events]
    assert [event.attributes["exception.message"] for event in events] == ["no route"] * 2  # type: ignore[index]
    assert recorded.spans[2].context is not None
    assert links[2][-1].context.span_id == recorded.spans[2].context.span_id, "it leads to the second run"
    recorded.check(soon if delay == 5 else late, "treadle.attempt", "treadle.outcome")


@shows("OpenTelemetry: with traces='linked' each run begins a trace, with links to the sender and the previous run")
async def test_each_run_of_linked_traces_starts_a_trace_with_links(app: App) -> None:
    recorded = Recorded()
    recorded.on(app, traces="linked")

    @app.task(name="parent", retry=ONCE)
    async def parent() -> JobSpec[Any]:
        if current().attempt == 1:
            raise ValueError("once")
        return child.job()

    @app.task(name="child")
    async def child() -> None: ...

    with recorded.tracer.start_as_current_span("view"):
        await parent.enqueue()
    await drain(app)
    recorded.check("""
        view
          enqueue default
        run parent <- enqueue default > ValueError
        run parent <- enqueue default, previous run parent
          enqueue default
        run child <- enqueue default
    """)


@shows("OpenTelemetry: steps are spans; a sleep or a wait ends the span of a run, and that of the next run links to it")
async def test_durable_steps_sleeps_and_signals(app: App, recorded: Recorded, clock: HandClock) -> None:
    @app.task(name="order")
    async def order() -> None:
        here = current()
        await here.step("charge", charge)
        await here.sleep(5)
        await here.step("pack", pack)
        await here.wait_for("approved")
        await here.step("ship", charge)

    async def charge() -> None:
        with recorded.tracer.start_as_current_span("payment"):
            await asyncio.sleep(0)

    def pack() -> None:
        with recorded.tracer.start_as_current_span("in a thread"):
            pass

    job = await order.enqueue()
    await drain(app)
    clock.advance(6)
    await drain(app)
    clock.advance(120)
    await app.jobs.signal(job, "approved")
    await drain(app)
    assert await job.result() is None
    recorded.check(
        """
        enqueue default
          run order [deferred]
            step charge
              payment
          run order [waiting] <- previous run order
            step pack
              in a thread
        run order [succeeded] <- enqueue default, previous run order
          step ship
            payment
        """,
        "treadle.outcome",
    )


async def test_a_step_that_fails(app: App, recorded: Recorded) -> None:
    @app.task(name="order", retry=Retry(attempts=1))
    def order() -> None:
        current().sync.step("charge", charge)

    def charge() -> None:
        raise PermissionError("card declined")

    await order.enqueue()
    await drain(app)
    recorded.check("""
        enqueue default
          run order > PermissionError
            step charge > PermissionError
    """)


@shows("OpenTelemetry: one call of a batch is one span, with a link to the sender of each of its jobs")
async def test_one_call_of_a_batch_is_one_span_with_links(app: App, recorded: Recorded) -> None:
    @app.batch(name="mails", size=10)
    async def mails(items: list[int]) -> list[Any]:
        with recorded.tracer.start_as_current_span("smtp"):
            return [n if n else ValueError("none") for n in items]

    with recorded.tracer.start_as_current_span("one"):
        await mails.options(retry=Retry(attempts=1)).enqueue(0)
    with recorded.tracer.start_as_current_span("two"):
        await app.enqueue([mails.job(1), mails.job(2)])
    await drain(app, concurrency=10)
    call = recorded.named("run mails")
    [event] = call.events
    assert event.attributes is not None
    assert (event.attributes["exception.type"], event.attributes["treadle.outcome"]) == ("ValueError", "failed")
    recorded.check(
        """
        one
          enqueue default
        two
          enqueue default [2]
        run mails [3] <- enqueue default, enqueue default, enqueue default
          smtp
        """,
        "messaging.batch.message_count",
    )


async def test_a_batch_that_raises(app: App, recorded: Recorded) -> None:
    @app.batch(name="mails", size=10, retry=Retry(attempts=1))
    def mails(items: list[int]) -> list[Any]:
        raise OSError("no smtp")

    await app.enqueue([mails.job(1), mails.job(2)])
    await drain(app, concurrency=10)
    assert len(recorded.named("run mails").events) == 3, "of the call, and of each of its jobs"
    recorded.check("""
        enqueue default
        run mails <- enqueue default, enqueue default > OSError
    """)


@shows("OpenTelemetry: spans show jobs that were aborted, had arguments that do not fit, or failed by a child")
async def test_spans_show_endings_without_a_return(app: App, recorded: Recorded) -> None:
    @app.task(name="aborts")
    async def aborts() -> None:
        raise Abort("never again")

    @app.task(name="typed")
    async def typed(n: int) -> int:
        return n

    @app.task(name="parent")
    async def parent() -> JobSpec[Any]:
        return aborts.job()

    await aborts.enqueue()
    await app.stub("typed").enqueue("no number")
    await parent.enqueue()
    await drain(app)
    recorded.check(
        """
        enqueue default
          run aborts [failed, aborted] > treadle.policy.retry.Abort
        enqueue default
          run typed [failed, arguments] > treadle.errors.BadArgument
        enqueue default
          run parent [waiting]
            enqueue default
              run aborts [failed, aborted] > treadle.policy.retry.Abort
          end parent [failed, children] <- previous run parent > treadle.errors.JobFailed
        """,
        "treadle.outcome",
        "treadle.reason",
    )


async def test_a_job_that_is_reopened_much_later(app: App, recorded: Recorded, clock: HandClock) -> None:
    @app.task(name="flaky", retry=Retry(attempts=1))
    async def flaky() -> None:
        if current().record.reopenings == 0:
            raise ValueError("no")

    job = await flaky.enqueue()
    await drain(app)
    clock.advance(3_600)
    await app.jobs.retry(job)
    await drain(app)
    assert (await job.ended()).state is State.SUCCEEDED
    recorded.check("""
        enqueue default
          run flaky > ValueError
        run flaky <- enqueue default, previous run flaky
    """)


async def test_a_delayed_job_begins_its_own_trace(app: App, recorded: Recorded, clock: HandClock, leaf: Any) -> None:
    await leaf.options(delay=30).enqueue()
    await leaf.options(delay=90).enqueue()
    clock.advance(600)
    await drain(app)
    recorded.check("""
        enqueue default
          run leaf
        enqueue default
        run leaf <- enqueue default
    """)


@shows("OpenTelemetry: each tick of a schedule is a trace of its own")
async def test_each_tick_of_a_schedule_is_a_trace(app: App, recorded: Recorded, clock: HandClock) -> None:
    @app.cron("* * * * *", name="beat")
    @app.task(name="beat")
    async def beat() -> None: ...

    with recorded.tracer.start_as_current_span("the program"):
        await app._core.prepare()
        for _ in range(2):
            clock.advance(60)
            await drain(app)
    recorded.check("""
        the program
        enqueue default
          run beat
        enqueue default
          run beat
    """)


async def test_a_span_for_each_job(app: App) -> None:
    recorded = Recorded()
    recorded.on(app, create_spans=True)

    @app.task(name="leaf")
    async def leaf(n: int) -> None: ...

    await app.enqueue([leaf.job(1), leaf.job(2)])
    await drain(app)
    recorded.check(
        """
        create leaf [create]
          run leaf [process]
        create leaf [create]
          run leaf [process]
        enqueue default [send] <- create leaf, create leaf
        """,
        "messaging.operation.type",
    )


async def test_a_call_that_fails(app: App, recorded: Recorded, leaf: Any) -> None:
    key = Key("one", conflict="raise")
    await leaf.options(key=key).enqueue()
    with pytest.raises(KeyHeld):
        await leaf.options(key=key).enqueue()
    recorded.check("""
        enqueue default
        enqueue default > treadle.errors.KeyHeld
    """)
