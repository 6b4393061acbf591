"""The ways in which the run of a job ends, one small job for each, and a middleware that keeps what `judged` gets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.waiting import Signal
from treadle import Abort, App, Defer, JobSpec, Middleware, Retry, RunOutcome, Sizes, current, flow
from treadle.execution.context import Context
from treadle.execution.middleware import Run

Case = Callable[[App], JobSpec[Any]]

RETRY, SIZES = Retry(attempts=2, base=0.001, jitter=0), Sizes(result=200)  # of the apps that the cases need


class Judge(Middleware):
    """Keeps each call, in words."""

    def __init__(self) -> None:
        self.calls: list[tuple[Context, RunOutcome, BaseException | None]] = []
        self.called = Signal()

    def judged(self, context: Context, outcome: RunOutcome, error: BaseException | None) -> None:
        self.calls.append((context, outcome, error))
        self.called.send()

    def of(self, id: str) -> list[str]:
        """The calls for one job: names, reasons of failures, and types of exceptions."""
        found = []
        for context, outcome, error in self.calls:
            if context.id == id:
                words = [outcome.name, outcome.reason if outcome.final and error else None]
                found.append(" ".join(filter(None, [*words, type(error).__name__ if error else None])))
        return found

    async def until(self, name: str) -> RunOutcome:
        """Wait for a call with this name."""

        def found() -> list[RunOutcome]:
            return [outcome for _, outcome, _ in self.calls if outcome.name == name]

        return (await self.called.until(found, f"judged as {name}"))[0]  # type: ignore[no-any-return]


# --- one job each: (how to make it, its calls)

CASES: dict[str, tuple[Case, list[str]]] = {}


def case(*calls: str) -> Callable[[Case], Case]:
    def add(make: Case) -> Case:
        CASES[make.__name__] = make, list(calls)
        return make

    return add


@case("succeeded")
def an_async_function_returns(app: App) -> JobSpec[Any]:
    @app.task(name="t")
    async def t() -> int:
        return 1

    return t.job()


@case("succeeded")
def a_function_in_a_thread_returns(app: App) -> JobSpec[Any]:
    @app.task(name="t")
    def t() -> int:
        return 1

    return t.job()


@case("succeeded")
def an_item_of_a_batch_gets_its_result(app: App) -> JobSpec[Any]:
    @app.batch(name="t", max_wait=0.001)
    async def t(items: list[int]) -> list[int]:
        return items

    return t.job(1)


@case("retrying ValueError", "failed error ValueError")
def it_raises_until_no_attempts_are_left(app: App) -> JobSpec[Any]:
    @app.task(name="t")
    async def t() -> None:
        raise ValueError("no")

    return t.job()


@case("retrying KeyError", "failed error KeyError")
def it_raises_in_a_thread(app: App) -> JobSpec[Any]:
    @app.task(name="t")
    def t() -> None:
        raise KeyError("no")

    return t.job()


@case("retrying ValueError", "failed error ValueError")
def the_call_of_its_batch_raises(app: App) -> JobSpec[Any]:
    @app.batch(name="t", max_wait=0.001)
    def t(items: list[int]) -> list[int]:
        raise ValueError("no")

    return t.job(1)


@case("failed aborted Abort")
def it_aborts(app: App) -> JobSpec[Any]:
    @app.task(name="t")
    async def t() -> None:
        raise Abort("no such customer")

    return t.job()


@case("failed aborted PermissionError")
def on_error_aborts(app: App) -> JobSpec[Any]:
    @app.task(name="t", on_error=lambda error, failure: Abort("never again"))
    async def t() -> None:
        raise PermissionError("no")

    return t.job()


@case("deferred Defer", "succeeded")
def it_defers(app: App) -> JobSpec[Any]:
    times: list[int] = []

    @app.task(name="t")
    async def t() -> None:
        times.append(1)
        if len(times) == 1:
            raise Defer(0.001)

    return t.job()


@case("deferred", "succeeded")
def it_sleeps(app: App) -> JobSpec[Any]:
    @app.task(name="t")
    async def t() -> None:
        await current().sleep(0.05)  # shorter ones do not end the run

    return t.job()


@case("failed error TimeoutError")
def it_takes_too_long(app: App) -> JobSpec[Any]:
    @app.task(name="t", timeout=0.01, retry=Retry(attempts=1))
    async def t() -> None:
        await asyncio.Event().wait()

    return t.job()


@case("expired expired JobExpired")
def its_deadline_passes(app: App) -> JobSpec[Any]:
    @app.task(name="t")
    async def t() -> None:
        await asyncio.Event().wait()

    return t.options(deadline=datetime.now(UTC) + timedelta(seconds=0.2)).job()


@case("failed arguments BadArgument")
def its_arguments_do_not_fit(app: App) -> JobSpec[Any]:
    @app.task(name="t")
    async def t(n: int) -> None: ...

    return app.stub("t").job("no number")


@case("failed result BadResult")
def its_result_does_not_fit(app: App) -> JobSpec[Any]:
    @app.task(name="t")
    async def t() -> int:
        return "x"  # type: ignore[return-value]

    return t.job()


@case("failed result TooLarge")
def its_result_is_too_large(app: App) -> JobSpec[Any]:
    @app.task(name="t")
    async def t() -> str:
        return "x" * 300

    return t.job()


@case("waiting", "succeeded")
def it_continues_as_another_job(app: App) -> JobSpec[Any]:
    @app.task(name="child")
    async def child() -> None: ...

    @app.task(name="t")
    async def t() -> JobSpec[None]:
        return child.job()

    return t.job()


@case("waiting", "failed children JobFailed")
def its_child_fails(app: App) -> JobSpec[Any]:
    @app.task(name="child")
    async def child() -> None:
        raise Abort("no")

    @app.task(name="t")
    async def t() -> JobSpec[None]:
        return child.job()

    return t.job()


@case("failed children ZeroDivisionError")
def its_reducer_raises(app: App) -> JobSpec[Any]:
    @app.reducer("ratio")
    def ratio(values: list[int]) -> float:
        return values[0] / 0

    @app.task(name="t")
    async def t() -> int:
        return 1

    return flow(t.job(), t.job(), reduce="ratio").job()


@case("failed error LookupError")
def a_middleware_raises(app: App) -> JobSpec[Any]:
    class Refuses(Middleware):
        async def run(self, context: Context, proceed: Run) -> Any:
            raise LookupError("no such tenant")

    app.middleware(Refuses)

    @app.task(name="t", retry=Retry(attempts=1))
    async def t() -> None: ...

    return t.job()


@case("retrying SystemExit", "failed error SystemExit")
def it_exits(app: App) -> JobSpec[Any]:
    @app.task(name="t")
    async def t() -> None:
        raise SystemExit(3)

    return t.job()
