"""A stored job whose arguments do not fit its task: older or newer code enqueued it, or a stub did."""

from __future__ import annotations

import base64
import pickle
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from tests.kit import Told, work
from tests.worker import process_tasks
from treadle import App, BadArgument, Defer, JobFailed, Retry
from treadle.storage.contract import Storage
from treadle.testing import HandClock


@pytest.mark.parametrize("kind", ["async", "thread", "process"])
async def test_arguments_that_do_not_fit_end_the_job_at_its_first_attempt(app: App, told: Told, kind: str) -> None:
    def plain(n: int) -> int:
        return n

    async def later(n: int) -> int:
        return n

    body = {"async": later, "thread": plain, "process": process_tasks.double}[kind]
    app.task(name="t", kind=kind, retry=Retry(attempts=None))(body)  # type: ignore[call-overload]
    stub: Any = app.stub("t")
    async with work(app):
        jobs = [await app.enqueue(each) for each in (stub.job("no number"), stub.job(1, colour="red"), stub.job())]
        for job, text in zip(
            jobs, ["expected int", "'colour' is not one of its parameters", "is missing"], strict=True
        ):
            with pytest.raises(JobFailed, match=text) as failed:
                await job.result(timeout=60)
            assert failed.value.reason == "arguments"
            assert (failed.value.error or "").startswith("treadle.errors.BadArgument: ")
            assert (await app.jobs.get(job)).attempt == 1
        assert await (await app.enqueue(stub.job(4))).result(timeout=60) == (8 if kind == "process" else 4)
    assert told.names("retrying", "failed") == ["failed"] * 3


async def test_a_result_that_does_not_fit_the_next_task_ends_that_job_at_its_first_attempt(app: App) -> None:
    @app.task(name="word")
    async def word() -> Any:
        return "seven"

    @app.task(name="number")
    async def number(n: int) -> int:
        return n

    async with work(app):
        job = await app.enqueue(number.options(after=[await word.enqueue()], pass_result=True).job())
        with pytest.raises(JobFailed, match="expected int") as failed:
            await job.result(timeout=30)
    assert (failed.value.reason, (await app.jobs.get(job)).attempt) == ("arguments", 1)


async def test_an_older_worker_that_defers_leaves_the_job_to_a_newer_one(storage: Storage, clock: HandClock) -> None:
    def wait_for_the_deploy(error: BaseException, _: Any) -> Defer | None:
        return Defer(30) if isinstance(error, BadArgument) and error.permanent else None

    old = App(storage=storage, clock=clock, on_error=wait_for_the_deploy)
    new = App(storage=storage, clock=clock)

    @old.task(name="mail")
    async def mail(to: str) -> str:
        return to

    @new.task(name="mail")
    async def newer(to: str, colour: str = "red") -> str:
        return f"{to} {colour}"

    async with old, new:
        told = Told(old)
        job = await newer.enqueue("ann", colour="blue")
        async with work(old):
            assert (await told.until("deferred")).delay == 30
        clock.advance(30)
        async with work(new):
            assert await job.result(timeout=30) == "ann blue"
        assert (await new.jobs.get(job)).attempt == 1


async def test_a_failed_job_can_be_reopened_once_the_code_fits(storage: Storage, clock: HandClock) -> None:
    old, new = App(storage=storage, clock=clock), App(storage=storage, clock=clock)

    @old.task(name="mail")
    async def mail(to: str) -> str:
        return to

    @new.task(name="mail")
    async def newer(to: str, colour: str = "red") -> str:
        return f"{to} {colour}"

    async with old, new:
        job = await newer.enqueue("ann", colour="blue")
        async with work(old):
            with pytest.raises(JobFailed, match="at most 1 positional"):
                await job.result(timeout=30)
        [row] = (await new.jobs.list(state="failed")).records
        assert (row.job.id, row.reason, row.attempt) == (job.id, "arguments", 1)
        await new.jobs.retry(job)
        async with work(new):
            assert await job.result(timeout=30) == "ann blue"


async def test_a_bad_call_that_the_function_makes_is_an_ordinary_failure(app: App, told: Told) -> None:
    @app.task(name="other")
    async def other(n: int) -> int:
        return n

    @app.task(name="t", retry=Retry(attempts=2, base=0))
    async def t(how: str, id: str) -> None:
        if how == "call":
            other.job("no number")  # type: ignore[arg-type]
        app.jobs.arguments(await app.jobs.get(id))

    stub: Any = app.stub("other")
    bad = await app.enqueue(stub.job("no number"))
    async with work(app):
        for how in ("call", "look"):
            with pytest.raises(JobFailed, match="expected int") as failed:
                await (await t.enqueue(how, bad.id)).result(timeout=30)
            assert failed.value.reason == "error"
    assert told.names("retrying").count("retrying") == 2


class Vault:
    """A codec whose key is missing during one read."""

    away = False

    def encode(self, value: object) -> str:
        return base64.b64encode(pickle.dumps(value)).decode()

    def decode(self, text: str) -> object:
        if self.away:
            self.away = False
            raise ConnectionError("the key is away")
        return pickle.loads(base64.b64decode(text))


async def test_a_codec_that_raises_is_called_again(app: App, told: Told) -> None:
    vault = Vault()

    @app.task(name="t", codec=vault, retry=Retry(base=0))
    async def t(n: int) -> int:
        return n

    job = await t.enqueue(3)
    vault.away = True
    async with work(app):
        assert await job.result(timeout=30) == 3
    assert told.names("retrying", "failed") == ["retrying"]


@dataclass
class Customer:
    """Its constructor calls a service that fails now and then."""

    id: int
    away: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if Customer.away:
            raise ConnectionError("the directory is away")


async def test_a_class_that_raises_for_another_reason_is_called_again(app: App, told: Told) -> None:
    @app.task(name="greet", retry=Retry(attempts=None, base=0))
    async def greet(customer: Customer) -> int:
        return customer.id

    job = await app.enqueue(greet.job(Customer(7)))
    Customer.away = True
    try:
        async with work(app):
            await told.until("retrying")
            Customer.away = False
            assert await job.result(timeout=60) == 7
    finally:
        Customer.away = False
