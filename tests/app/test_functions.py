"""Functions as people write them: each works, or is refused where it is declared, with what to write in its place."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from tests.kit import work
from treadle import Abort, App, BadTask, Defer, JobFailed, Retry, current


class Doubler:
    def __init__(self, factor: int = 2) -> None:
        self.factor = factor

    def method(self, n: int) -> int:
        return n * self.factor

    @classmethod
    def of_class(cls, n: int) -> str:
        return f"{cls.__name__}{n}"

    @staticmethod
    def static(n: int) -> int:
        return n * 2

    def __call__(self, n: int) -> int:
        return n * self.factor


class AsyncDoubler:
    async def __call__(self, n: int) -> int:
        return n * 2


async def double(n: int) -> int:
    return n * 2


def plainly(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return inner


def running(function: Callable[..., Any]) -> Callable[..., Any]:
    """As the decorators of command lines do."""

    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return asyncio.run(function(*args, **kwargs))

    return inner


def a_generator(n: int) -> Any:
    yield n


async def values(app: App, *tasks: Any) -> list[Any]:
    async with work(app, poll=0.01):
        return [await (await task.enqueue(3)).result(30) for task in tasks]


@pytest.mark.parametrize(
    ("function", "options", "cure"),
    [
        (lambda n: n, {}, "give name=, or write a def"),
        (functools.partial(pow, 2), {}, "give name=, or write a def"),
        (Doubler(), {}, "give name=, or write a def"),
        (Doubler.method, {}, "move the function out of the class, or make it a @staticmethod below @app.task"),
        (plainly(Doubler.method), {}, "move the function out of the class"),
        (Doubler.__dict__["of_class"], {}, "move the function out of the class"),
        (functools.partialmethod(Doubler.method, 2), {"name": "t"}, "move the function out of the class"),
        (Doubler, {}, "a class cannot be a task; write a function that makes its object and uses it"),
        (a_generator, {}, "return a list, or enqueue a job per item"),
        (plainly(double), {}, "make the wrapper an async function that awaits it"),
        (running(double), {}, 'kind="thread" if it runs it'),
        (property(double), {"name": "t"}, "expected a function"),
    ],
)
@pytest.mark.parametrize("declare", ["task", "every"])
def test_a_function_that_cannot_be_a_task_is_refused_with_the_cure(
    function: Any, options: dict[str, Any], cure: str, declare: str
) -> None:
    app = App("memory://")
    decorate: Any = app.every(60) if declare == "every" and not options else app.task(**options)
    with pytest.raises(BadTask) as refused:
        decorate(function)
    assert cure in str(refused.value)
    assert not app.tasks


def test_a_method_in_a_class_body_is_refused_there() -> None:
    app = App("memory://")
    with pytest.raises(BadTask, match="a method cannot be a task"):

        class Mailer:
            @app.task
            def send(self, to: str) -> None: ...

    with pytest.raises(BadTask, match="a method cannot be a task"):

        class Sender:
            @classmethod
            @app.task
            async def send(cls, to: str) -> None: ...

    with pytest.raises(BadTask, match="a method cannot be a task"):

        class Batcher:
            @app.batch()
            def send(self, to: list[str]) -> list[None]:
                return [None for _ in to]


async def test_callables_of_other_kinds_work() -> None:
    app = App("memory://")

    class Mailer:
        @app.task
        @staticmethod
        async def send(n: int) -> int:
            return n * 2

        @staticmethod
        @app.task
        def post(n: int) -> int:
            return n * 2

    found = await values(
        app,
        Mailer.send,
        Mailer().post,
        app.task(Doubler(4).method),
        app.task(Doubler.of_class),
        app.task(name="object")(Doubler()),
        app.task(name="async-object")(AsyncDoubler()),
        app.task(name="partial")(functools.partial(pow, 2)),
        app.task(name="async-partial")(functools.partial(double)),
        app.task(name="lambda")(lambda n: n * 2),
        app.task(name="returned", kind="async")(plainly(double)),
        app.task(name="run", kind="thread")(running(double)),
    )
    assert found == [6, 6, 12, "Doubler3", 6, 6, 8, 6, 6, 6, 6]


def test_methods_of_two_objects_need_two_names() -> None:
    app = App("memory://")
    app.task(Doubler(2).method)
    with pytest.raises(BadTask, match="already registered"):
        app.task(Doubler(3).method)


@pytest.mark.parametrize("declared", [True, False])
async def test_a_task_below_another_decorator_is_refused_when_a_worker_starts(
    declared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name holds the decorator's function then, and workers would run the task without it."""
    app, module = App("memory://"), ModuleType("shop_tasks")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    order = "@plainly\n@app.task" if declared else "@app.task\n@plainly"
    exec(f"{order}\ndef send(n: int) -> int: return n", {**vars(module), "app": app, "plainly": plainly}, vars(module))
    if declared:
        with pytest.raises(BadTask, match=r"put @app\.task above all others"):
            await values(app)
    else:
        assert await values(app, module.send) == [3]


@pytest.mark.parametrize("annotated", [True, False])
@pytest.mark.parametrize("kind", ["thread", "async", "batch"])
async def test_a_coroutine_that_nothing_awaits_fails_at_once_with_the_cure(annotated: bool, kind: str) -> None:
    app, runs = App("memory://", retry=Retry(attempts=5, base=0.001)), list[int]()

    def forgets(n: int) -> Any:
        runs.append(n)
        return double(n)

    async def awaits_nothing(n: int) -> Any:
        return forgets(n)

    def each(items: list[int]) -> list[Any]:
        return [forgets(n) for n in items]

    function: Any = {"thread": forgets, "async": awaits_nothing, "batch": each}[kind]
    if annotated:
        function.__annotations__["return"] = list[int] if kind == "batch" else int
    task: Any = app.batch(max_wait=0.01)(function) if kind == "batch" else app.task(function)
    with pytest.raises(JobFailed, match="is a coroutine that nothing has awaited: make the function async"):
        await values(app, task)
    assert runs == [3]


class Broken(Exception):
    """An exception that cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("broken")

    __repr__ = __str__


class Quits(Broken):
    def __str__(self) -> str:
        raise SystemExit(3)


def raises_broken(which: str) -> None:
    raise Quits if which == "quits" else Broken


@pytest.mark.parametrize("which", ["broken", "quits"])
@pytest.mark.parametrize("kind", ["async", "thread", "process", "batch", "step"])
async def test_an_exception_that_cannot_be_shown_keeps_its_traceback(kind: str, which: str) -> None:
    app = App("memory://", retry=Retry(attempts=1))

    async def awaited(which: str) -> None:
        raises_broken(which)

    async def together(items: list[str]) -> list[None]:
        raises_broken(items[0])
        return []

    async def in_step(which: str) -> None:
        await current().step("raise", raises_broken, which)

    task: Any = {
        "async": lambda: app.task(awaited),
        "thread": lambda: app.task(raises_broken),
        "process": lambda: app.task(kind="process")(raises_broken),
        "batch": lambda: app.batch(max_wait=0.01)(together),
        "step": lambda: app.task(in_step),
    }[kind]()
    async with work(app, poll=0.01):
        job = await task.enqueue(which)
        await job.ended(60)
        row = await app.jobs.get(job)
    assert row is not None
    assert row.error is not None
    raised = "SystemExit" if which == "quits" else "RuntimeError"
    assert row.error.splitlines()[0].endswith(f"its text cannot be shown: {raised}")
    assert "in raises_broken" in row.error


@pytest.mark.parametrize("kind", ["async", "thread", "process"])
@pytest.mark.parametrize("verdict", ["retry", "defer", "abort"])
async def test_a_verdict_logs_and_stores_no_traceback(
    kind: str, verdict: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("memory://", retry=Retry(attempts=2))

    async def awaited(verdict: str) -> None:
        gives(verdict)

    task: Any = app.task(awaited) if kind == "async" else app.task(kind=kind)(gives)  # type: ignore[call-overload]
    with caplog.at_level("INFO", logger="treadle.jobs"):
        async with work(app, poll=0.01):
            job = await task.options(expires=20).enqueue(verdict)
            await job.ended(60)
            row = await app.jobs.get(job)
    assert row is not None
    assert "Traceback" not in (row.error or "")
    assert [record.levelname for record in caplog.records] == {"retry": ["WARNING", "ERROR"]}.get(verdict, ["ERROR"])
    assert not any(record.exc_info or record.exc_text for record in caplog.records)


def gives(verdict: str) -> None:
    raise {"retry": Retry.after(0.001), "defer": Defer(60), "abort": Abort("no such order")}[verdict]
