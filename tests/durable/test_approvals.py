"""Requests for approval: a decision counts once, only those who may decide do, and the row says how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.durable.kit import Ledger, error_of
from tests.kit import Spy
from treadle import (
    AlreadyDecided,
    App,
    Approval,
    BadOption,
    MayNotDecide,
    Retry,
    Stale,
    State,
    TooLarge,
    UnknownJob,
    current,
)
from treadle.core.model import Outcome, Settled
from treadle.core.query_model import Query
from treadle.storage.contract import Storage
from treadle.storage.proxy import StorageProxy
from treadle.testing import HandClock, drain
from treadle.workflow.approvals import APPROVAL, LABEL
from treadle_testkit.shows import shows

DAY = 86_400.0
SHOWN = {"order": 12, "amount": 99}


def refund(app: App, kind: str = "async", **asked: Any) -> Any:
    """A task that asks whether it may refund, and returns the decision."""
    asked = {"by": "group:finance", "show": SHOWN, **asked}

    def told(answer: Approval) -> list[Any]:
        return [bool(answer), answer.approved, answer.by, answer.reason, answer.at.isoformat()]

    async def ask() -> list[Any]:
        return told(await current().approve("refund", **asked))

    def ask_in_thread() -> list[Any]:
        return told(current().sync.approve("refund", **asked))

    return app.task(name="refund")(ask if kind == "async" else ask_in_thread)


async def only(app: App, **chosen: Any) -> Any:
    """The only open request."""
    [request] = (await app.jobs.approvals(**chosen)).requests
    return request


@shows("a job that waits for the decision of a person gets it with the person, the reason and the time")
@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize("approved", [True, False])
async def test_a_decision_reaches_the_job(app: App, clock: HandClock, kind: str, approved: bool) -> None:
    job = await refund(app, kind).enqueue()
    await drain(app)
    request = await only(app)
    assert (request.job, request.name, request.task) == (job.id, "refund", "refund")
    assert (request.by, request.show, request.state) == ("group:finance", SHOWN, "open")
    assert request.until is None
    clock.advance(60)
    answer = await app.jobs.decide(request, approved=approved, reason="as agreed", by="ann", groups=("finance",))
    assert (answer.approved, answer.by, answer.reason) == (approved, "ann", "as agreed")
    await drain(app)
    assert await job.result(0) == [approved, approved, "ann", "as agreed", answer.at.isoformat()]
    assert not (await app.jobs.approvals()).requests


async def test_a_job_that_waits_holds_no_slot(app: App) -> None:
    job = await refund(app).enqueue()
    assert await drain(app, limit=10) == 1
    assert (await app.jobs.get(job)).state is State.WAITING


@shows("of two decisions at the same moment one counts, and the other one raises AlreadyDecided with it")
async def test_one_of_two_decisions_counts(app: App) -> None:
    job = await refund(app).enqueue()
    await drain(app)
    request = await only(app)
    answers = await asyncio.gather(
        app.jobs.decide(request, approved=True, reason="fine", by="ann"),
        app.jobs.decide(request, approved=False, reason="no", by="bob"),
        return_exceptions=True,
    )
    [counted] = [answer for answer in answers if isinstance(answer, Approval)]
    [late] = [answer for answer in answers if isinstance(answer, AlreadyDecided)]
    assert (late.approved, late.by, late.reason) == (counted.approved, counted.by, counted.reason)
    assert counted.by in str(late)
    await drain(app)
    assert (await job.result(0))[:4] == [counted.approved, counted.approved, counted.by, counted.reason]


async def test_a_second_decision_raises_the_first(app: App) -> None:
    await refund(app).enqueue()
    await drain(app)
    request = await only(app)
    await app.jobs.decide(request.id, approved=True, by="ann")
    with pytest.raises(AlreadyDecided, match="'refund' was already approved by ann"):
        await app.jobs.decide(request.id, approved=False, by="bob")
    assert (await app.jobs.approval(request.id)).state == "decided"


@pytest.mark.parametrize(
    ("by", "user", "groups", "may"),
    [
        ("group:finance", "ann", ("finance",), True),
        ("group:finance", "ann", ("sales",), False),
        ("group:finance", "finance", (), False),
        ("group:finance", "ann", ("*",), True),
        ("user:ann", "ann", (), True),
        ("user:ann", "bob", ("ann",), False),
        ("", "bob", (), True),
    ],
)
async def test_only_those_that_may_decide_do(app: App, by: str, user: str, groups: tuple[str, ...], may: bool) -> None:
    await refund(app, by=by).enqueue()
    await drain(app)
    request = await only(app, by=by)
    if may:
        await app.jobs.decide(request, approved=True, by=user, groups=groups)
        return
    with pytest.raises(MayNotDecide, match=f"{user} may not decide the request 'refund': only the .* may"):
        await app.jobs.decide(request, approved=True, by=user, groups=groups)
    assert await only(app) == request


@shows("a request whose time is over is decided by nobody, and the wait raises TimeoutError")
@pytest.mark.parametrize("as_instant", [False, True])
async def test_the_time_of_a_request_ends(app: App, clock: HandClock, as_instant: bool) -> None:
    until = datetime.fromtimestamp(clock() + 2 * DAY, UTC) if as_instant else timedelta(days=2)
    job = await refund(app, until=until).enqueue()
    await drain(app)
    request = await only(app)
    assert request.until == pytest.approx(clock() + 2 * DAY, abs=1)
    clock.advance(2 * DAY + 1)
    with pytest.raises(Stale, match="the time of the request was over"):  # whether or not a worker runs
        await app.jobs.decide(request, approved=True)
    await drain(app)
    assert "nobody has decided 'refund' in time" in await error_of(app, job)
    with pytest.raises(Stale, match="the time of the request was over"):
        await app.jobs.decide(request, approved=True)
    assert not (await app.jobs.approvals()).requests


@pytest.mark.parametrize("which", ["answer", "late"])
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_an_escalation_withdraws_the_first_request(app: App, clock: HandClock, which: str, kind: str) -> None:
    async def ask() -> list[Any]:
        here = current()
        name, value = await here.first(answer=here.approve("refund", by="group:finance"), late=here.sleep(DAY))
        if name == "late":
            value = await here.approve("refund", by="group:board")
        return [name, value.approved, value.by]

    def ask_in_thread() -> list[Any]:
        here = current()
        name, value = here.sync.first(answer=here.approve("refund", by="group:finance"), late=here.sleep(DAY))
        if name == "late":
            value = here.sync.approve("refund", by="group:board")
        return [name, value.approved, value.by]

    job = await app.task(name="refund")(ask if kind == "async" else ask_in_thread).enqueue()
    await drain(app)
    first = await only(app)
    if which == "late":
        clock.advance(DAY)
        await drain(app)
        with pytest.raises(Stale, match="the request was withdrawn"):
            await app.jobs.decide(first, approved=True, by="ann")
        assert (await only(app)).by == "group:board"
    await app.jobs.decide(await only(app), approved=True, by="ann")
    await drain(app)
    assert await job.result(0) == [which, True, "ann"]


@shows("a reminder does not change the request: the same one stays open, and an early decision is not lost")
@pytest.mark.parametrize("early", [False, True])
async def test_a_reminder_keeps_the_request(app: App, clock: HandClock, ledger: Ledger, early: bool) -> None:
    @app.task(retry=Retry(attempts=2, base=0))
    async def ask() -> Any:
        here = current()
        while True:
            wait = here.approve("refund", by="group:finance", show=SHOWN)
            name, value = await here.first(answer=wait, late=here.sleep(DAY), keep=True)
            if name == "answer":
                return value.by
            await here.step("remind", ledger.do, "remind")

    ledger.fail["remind"] = 1 if early else 0
    job = await ask.enqueue()
    await drain(app)
    request = await only(app)
    for _ in range(2):
        clock.advance(DAY)
        await drain(app)
        assert await only(app) == request
    await app.jobs.decide(request, approved=True, by="ann")
    await drain(app)
    assert await job.result(0) == "ann"
    assert ledger.function_done["remind"] == (3 if early else 2)


async def test_several_requests_of_one_job_are_decided_in_any_order(app: App) -> None:
    @app.task
    async def ask() -> list[str]:
        here = current()
        answers = await asyncio.gather(*[here.approve(name, show=name) for name in ("a", "b", "c")])
        return [answer.by for answer in answers]

    job = await ask.enqueue()
    await drain(app)
    requests = (await app.jobs.approvals(job=job)).requests
    assert {request.name for request in requests} == {"a", "b", "c"}
    for request in sorted(requests, key=lambda request: request.name, reverse=True):
        await app.jobs.decide(request, approved=True, by=f"for {request.name}")
        await drain(app)
    assert await job.result(0) == ["for a", "for b", "for c"]


async def test_a_fork_keeps_the_decision_and_asks_for_the_next_one(app: App) -> None:
    @app.task
    async def ask() -> list[str]:
        return [(await current().approve(name)).by for name in ("a", "b")]

    job = await ask.enqueue()
    await drain(app)
    await app.jobs.decide(await only(app), approved=True, by="ann")
    await drain(app)
    fork = await app.jobs.fork(job, from_step="b")
    await drain(app)
    for each, by in ((job, "bob"), (fork, "eve")):
        await app.jobs.decide(await only(app, job=each), approved=True, by=by)
    await drain(app)
    assert [await job.result(0), await fork.result(0)] == [["ann", "bob"], ["ann", "eve"]]


async def test_explain_names_the_persons_and_the_requests(app: App) -> None:
    @app.task
    async def ask(*names: str) -> None:
        await asyncio.gather(*[current().approve(name, by="group:finance") for name in names])

    one, two = await ask.enqueue("a"), await ask.enqueue("a", "b")
    await drain(app)
    assert "until the group 'finance' decides the request 'a'" in (await app.jobs.explain(one))
    assert "decisions about 'a', 'b'" in (await app.jobs.explain(two))
    [request] = (await app.jobs.approvals(job=one)).requests
    assert f"the request 'a' of job {one.id}" in (await app.jobs.explain(request.id))


@pytest.mark.parametrize("how", ["cancelled", "forced", "returned", "failed", "restarted"])
async def test_a_request_ends_with_its_job(app: App, clock: HandClock, how: str) -> None:
    """Also one that its function has left open."""

    @app.task(retry=Retry(attempts=1))
    async def ask(round: int = 0) -> None:
        here = current()
        if round:
            await here.wait_for("never")
        await here.first(answer=here.approve("refund"), late=here.sleep(DAY), keep=True)
        if how == "failed":
            raise ValueError("no")
        if how == "restarted":
            await here.restart(1)
        if how != "returned":
            await here.wait_for("never")

    job = await ask.enqueue()
    await drain(app)
    request = await only(app)
    if how == "cancelled":
        await app.jobs.cancel(job)
    elif how == "forced":
        await app.jobs.cancel(job, force=True)
    else:
        clock.advance(DAY)
    await drain(app)
    assert not (await app.jobs.approvals()).requests
    with pytest.raises(Stale):
        await app.jobs.decide(request, approved=True)


async def test_a_retried_job_asks_again(app: App) -> None:
    job = await refund(app).enqueue()
    await drain(app)
    request = await only(app)
    await app.jobs.cancel(job)
    await drain(app)
    await app.jobs.retry(job)
    await drain(app)
    again = await only(app)
    assert again.id != request.id
    await app.jobs.decide(again, approved=True, by="ann")
    await drain(app)
    assert (await job.result(0))[2] == "ann"


async def test_a_job_that_runs_again_from_its_start_asks_again(app: App) -> None:
    job = await refund(app).enqueue()
    for by in ("ann", "bob"):
        await drain(app)
        await app.jobs.decide(await only(app), approved=True, by=by)
        await drain(app)
        assert (await job.result(0))[2] == by
        await app.jobs.rerun(job)


async def test_a_cancelled_row_gets_a_successor(app: App) -> None:
    await refund(app).enqueue()
    await drain(app)
    request = await only(app)
    await app.jobs.cancel(request.id)
    await drain(app)
    assert (await only(app)).id != request.id


async def test_a_later_run_must_show_the_same(app: App) -> None:
    """The decision is about what was shown."""
    amounts = iter([99, 100, 101])

    @app.task(retry=Retry(attempts=1))
    async def ask() -> bool:
        return bool(await current().approve("refund", show=next(amounts)))

    job = await ask.enqueue()
    await drain(app)
    await app.jobs.decide(await only(app), approved=True)
    await drain(app)
    assert "arguments" in await error_of(app, job)


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"by": "finance"}, BadOption),
        ({"by": "group:"}, BadOption),
        ({"by": "group:" + "x" * 300}, BadOption),
        ({"show": object()}, BadOption),
        ({"show": "x" * 70_000}, TooLarge),
        ({"until": -1}, BadOption),
        ({"until": datetime(2030, 1, 1)}, BadOption),  # noqa: DTZ001 - it has no time zone
    ],
)
async def test_wrong_questions_are_refused(app: App, asked: dict[str, Any], error: type[Exception]) -> None:
    @app.task
    async def ask() -> str:
        try:
            await current().approve("refund", **asked)
        except error as refused:
            return str(refused)
        return ""

    job = await ask.enqueue()
    await drain(app)
    assert await job.result(0)


async def test_wrong_decisions_are_refused(app: App) -> None:
    job = await refund(app).enqueue()
    await drain(app)
    request = await only(app)
    with pytest.raises(BadOption, match="expected True or False"):
        await app.jobs.decide(request, approved="yes")  # type: ignore[arg-type]
    with pytest.raises(BadOption, match="reason"):
        await app.jobs.decide(request, approved=True, reason="x" * 3_000)
    for id in (job.id, "treadle:approval:nobody"):
        with pytest.raises(UnknownJob):
            await app.jobs.decide(id, approved=True)
    with pytest.raises(UnknownJob):
        await app.jobs.within(("other",)).decide(request, approved=True)


@shows("the audit log has each decision: the person, the reason, and what was shown")
async def test_the_audit_log_has_the_decision(app: App) -> None:
    job = await refund(app).enqueue()
    await drain(app)
    request = await only(app)
    await app.jobs.decide(request, approved=False, reason="too much", by="ann")
    [entry] = (await app.audit.list()).entries
    assert (entry.by, entry.act, entry.target, entry.done) == ("ann", "approval.decide", job.id, 1)
    assert "rejected because 'too much'" in str(entry.filter)
    assert '"amount":99' in str(entry.filter)
    with pytest.raises(AlreadyDecided):
        await app.jobs.decide(request, approved=True, by="bob")


async def test_pages_of_requests(app: App) -> None:
    for by, queue in (("group:finance", "eu"), ("group:board", "eu"), ("group:finance", "us")):

        @app.task(name=f"{by}-{queue}", queue=queue)
        async def ask(by: str) -> None:
            await current().approve("refund", by=by)

        await ask.enqueue(by)
    await drain(app)
    first = await app.jobs.approvals(limit=2)
    second = await app.jobs.approvals(limit=2, cursor=first.cursor)
    assert [len(first.requests), len(second.requests), second.cursor] == [2, 1, None]
    assert len((await app.jobs.approvals(by="group:finance")).requests) == 2
    assert len((await app.jobs.approvals(queue="eu")).requests) == 2
    assert (await only(app, by="group:finance", queue="us")).queue == "us"
    assert len((await app.jobs.within(("us",)).approvals()).requests) == 1


class Meanwhile(StorageProxy):
    """Decides the request at the last moment before this outcome of its row."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self.before: State | None = None
        self.decide: Any = None

    async def settle(self, outcomes: Sequence[Outcome]) -> Sequence[Settled]:
        for out in outcomes:
            if out.id.startswith(APPROVAL) and out.state is self.before:
                self.before = None
                await self.decide(out.id)
        return await super().settle(outcomes)


@shows("a decision that comes before the end of the time, or before another wait has won, counts")
@pytest.mark.parametrize("ends", ["until", "race"])
async def test_a_decision_in_the_last_instant_counts(storage: Storage, clock: HandClock, ends: str) -> None:
    proxy = Meanwhile(storage)
    async with App(storage=proxy, clock=clock) as app:

        @app.task
        async def ask() -> str:
            here = current()
            if ends == "until":
                return (await here.approve("refund", until=DAY)).by
            _, value = await here.first(late=here.sleep(DAY), answer=here.approve("refund"))
            return "late" if value is None else value.by

        async def decide(id: str) -> None:
            await app.jobs.decide(id, approved=True, by="ann")

        job = await ask.enqueue()
        await drain(app)
        if ends == "race":
            proxy.before, proxy.decide = State.CANCELLED, decide
            clock.advance(DAY)
        else:
            # The row is still open when the run looks: the wait ends it, as its storage would.
            clock.advance(DAY - 0.01)
            await app.jobs.decide((await only(app)).id, approved=True, by="ann")
            clock.advance(1)
        await drain(app)
        assert await job.result(0) == "ann"


@shows("a list of open requests reads no other rows, however many other jobs wait")
async def test_a_list_reads_the_open_requests_only(app: App, spy: Spy) -> None:
    @app.task
    async def wait() -> None:
        await current().wait_for("never")

    await app.enqueue(*[wait.job() for _ in range(30)])
    await refund(app).enqueue()
    await drain(app)
    page = await spy.storage.find(Query(label=LABEL, state=(State.WAITING,), order="oldest", scan=10))
    assert len(page.records) == 1
    assert (page.scanned, page.cursor) == (1, None)
