"""Declaring tasks, opening and closing the app, and every mistake that a user can make there."""

from __future__ import annotations

import asyncio
import functools
import inspect
import typing
from pathlib import Path
from typing import Any

import pytest

from tests.kit import work
from treadle import App, BadArgument, BadOption, BadTask, BadUrl, BatchTask, Task, TooLarge, UnknownTask
from treadle.storage.memory import MemoryStorage
from treadle.worker.core import WorkerCore
from treadle_testkit.shows import shows


class Shop:
    @staticmethod
    async def open() -> None: ...


@pytest.fixture
def bare() -> App:
    return App(storage=MemoryStorage())


def test_names_come_from_module_and_function(bare: App) -> None:
    @bare.task
    async def send() -> None: ...

    assert send.name == f"{__name__}.test_names_come_from_module_and_function.send"
    assert bare.task(Shop.open).name == f"{__name__}.Shop.open"
    assert bare.task(name="mine")(lambda: None).name == "mine"
    assert bare.find_task("mine").name == "mine"
    with pytest.raises(UnknownTask, match="did you mean 'mine'"):
        bare.find_task("mime")


def test_a_task_is_still_the_function(bare: App) -> None:
    @bare.task
    async def double(n: int) -> int:
        """Twice."""
        return n * 2

    @bare.task
    def half(n: int) -> float:
        return n / 2

    assert asyncio.run(double(4)) == 8
    assert half(4) == 2
    assert (double.__name__, double.__doc__, half.kind) == ("double", "Twice.", "thread")


def test_an_object_that_cannot_be_a_task_is_refused(bare: App) -> None:
    def generator() -> Any:
        yield 1

    async def stream() -> Any:
        yield 1

    async def fine() -> None: ...

    def plain() -> None: ...

    wrong: list[tuple[Any, dict[str, Any], str]] = [
        (generator, {}, "generator"),
        (stream, {}, "generator"),
        (5, {"name": "five"}, "function"),
        (functools.partial(plain), {}, "give name="),
        (fine, {"kind": "thread"}, "async function"),
        (plain, {"kind": "async"}, "plain function"),
        (plain, {"kind": "fibre"}, "kind"),
        (plain, {"kind": "process"}, "top level of a module"),
        (plain, {"name": "two words"}, "without spaces"),
        (plain, {"name": "treadle.mine"}, "treadle"),
    ]
    for function, options, match in wrong:
        with pytest.raises(BadTask, match=match):
            bare.task(**options)(function)
    with pytest.raises(BadOption):
        bare.task(name=5)(plain)  # type: ignore[call-overload]
    assert bare.tasks == {}


def test_a_name_is_taken_once(bare: App) -> None:
    bare.task(name="t")(lambda: None)
    with pytest.raises(BadTask, match="'t' is already registered"):
        bare.task(name="t")(lambda: None)
    with pytest.raises(BadTask, match="is already a task"):
        bare.task(bare.find_task("t"))


def test_a_module_that_is_loaded_again_replaces_its_tasks(bare: App) -> None:
    """A notebook cell that runs twice, or `importlib.reload`: the same module and name are defined again."""

    def cell(number: int, decorator: str) -> None:
        code = f"@app.every(60)\n{decorator}\ndef send(): return {number}\n"
        code += f"@app.reducer\ndef merge(items): return {number}\n"
        code += f"@app.batch()\ndef many(items: list): return [{number} for _ in items]\n"
        exec(code, {"__name__": "cells", "app": bare})

    cell(1, "@app.task(concurrency=1)")
    cell(2, "@app.task")
    assert bare.tasks["cells.send"]() == 2
    assert bare.tasks["cells.many"](["x"]) == [2]
    assert bare._core.reducers["merge"]([]) == 2
    with pytest.raises(BadOption, match="a reducer named 'merge' is already registered"):
        bare.reducer("merge")(len)
    assert "task:cells.send" not in bare.tasks["cells.send"].job().new.limits
    assert not bare.limits.declarations
    with pytest.raises(BadTask, match=r"'cells.send' is already registered"):
        bare.task(name="cells.send")(len)
    with pytest.raises(BadOption, match="a schedule named"):  # a second schedule of one task needs a name
        bare.every(60)(bare.find_task("cells.send"))


@pytest.mark.parametrize("wrong", ["concurrency=-1", "concurrency=2, timeout=-1", "concurrency=2, kind='async'"])
def test_a_refused_declaration_changes_nothing(bare: App, wrong: str) -> None:
    """A new name stays free. A task that is declared again keeps its function and its limit."""

    def cell(number: int, options: str) -> None:
        exec(f"@app.task({options})\ndef send(): return {number}\n", {"__name__": "cells", "app": bare})

    with pytest.raises((BadOption, BadTask)):
        cell(1, wrong)
    assert not bare.tasks
    assert not bare.limits.declarations
    cell(2, "concurrency=1")
    with pytest.raises((BadOption, BadTask)):
        cell(3, wrong)
    send = bare.tasks["cells.send"]
    assert send() == 2
    assert send.job().new.limits == (("task:cells.send", 1),)
    assert bare.limits.declarations


def test_a_function_whose_schedule_is_refused_becomes_no_task(bare: App) -> None:
    for options in {"args": ("too many",)}, {"overlap": "never"}, {"name": "a\nb"}:
        refused: Any = bare.cron("0 3 * * *", **options)
        with pytest.raises((BadOption, BadArgument)):

            @refused
            def nightly() -> None: ...

        assert not bare.tasks


def test_the_registered_tasks_are_read_only(bare: App) -> None:
    task = bare.task(name="t")(lambda: None)
    tasks: Any = bare.tasks
    for change in (lambda: tasks.pop("t"), lambda: tasks.update(u=task)):
        with pytest.raises(AttributeError):
            change()
    with pytest.raises(TypeError):
        tasks["u"] = task
    assert dict(bare.tasks) == {"t": bare.find_task("t")}


def test_a_task_has_the_annotations_of_its_function(bare: App) -> None:
    """Tools that read signatures take a task for its function, also after one has read the class."""
    assert (typing.get_type_hints(Task), typing.get_type_hints(BatchTask)) == ({}, {})

    async def send(to: str, n: int = 1) -> list[str]:
        return [to] * n

    def many(items: list[int]) -> list[str]:
        return [str(each) for each in items]

    @functools.lru_cache
    def cached(n: int) -> str:
        return str(n)

    for task, function in ((bare.task(send), send), (bare.batch()(many), many), (bare.task(cached), cached)):
        assert typing.get_type_hints(task) == typing.get_type_hints(function)
        assert task.__annotations__ == inspect.unwrap(function).__annotations__
        assert inspect.signature(task) == inspect.signature(function)
    assert typing.get_type_hints(bare.task(name="partial")(functools.partial(send, "a"))) == {}

    class Sender:
        tries: int = 3

        def __call__(self, to: str) -> None: ...

    assert typing.get_type_hints(bare.task(name="sender")(Sender())) == {"to": str, "return": type(None)}


async def test_a_callable_object_with_an_async_call_is_async(bare: App) -> None:
    class Sender:
        async def __call__(self, n: int) -> int:
            return n + 1

    send = bare.task(name="send")(Sender())
    assert send.kind == "async"
    async with work(bare):
        assert await (await send.enqueue(1)).result(timeout=30) == 2


@shows("a call with wrong arguments raises `BadArgument` where the job is made")
async def test_a_wrong_call_is_refused_where_it_is_made(bare: App) -> None:
    @bare.task(name="t")
    async def t(n: int, *, text: str = "") -> None: ...

    wrong: Any = t
    for call, parameter in (
        (lambda: wrong.job("five"), "n"),
        (lambda: wrong.job(1, text=2), "text"),
        (lambda: wrong.job(1, colour="red"), "colour"),
    ):
        with pytest.raises(BadArgument) as caught:
            call()
        assert caught.value.parameter == parameter
        assert parameter in str(caught.value)
    # the last one is what a chain would send
    for late in (wrong.enqueue("five"), wrong.enqueue(), bare.enqueue(wrong.job())):
        with pytest.raises(BadArgument, match="'n'"):
            await late
    with pytest.raises(TooLarge):
        t.job(1, text="x" * (16 * 2**20 + 1))
    assert (await bare.jobs.list()).records == ()
    await bare.close()


def test_an_invalid_url_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("mysql://x", "sqlite://", "sqlite:///x.db?mode=fast", "memory://?x=1", "", "nonsense"):
        with pytest.raises(BadUrl):
            App(url)
    with pytest.raises(BadUrl):
        App(5)  # type: ignore[arg-type]
    with pytest.raises(BadOption):
        App("memory://", storage=MemoryStorage())
    monkeypatch.setenv("TREADLE_URL", "memory://")
    assert App().url == "memory://"
    monkeypatch.delenv("TREADLE_URL")
    assert App().url == f"sqlite:///{Path(__file__).resolve().parent / 'treadle.db'}"


async def test_an_app_opens_at_its_first_use(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'jobs.db'}")

    @app.task(name="t")
    async def t() -> None: ...

    job = await t.enqueue()
    await app.close()
    await app.close()
    async with App(f"sqlite:///{tmp_path / 'jobs.db'}") as other:
        assert (await other.jobs.get(job)).job.task == "t"


async def test_two_apps_share_the_jobs_of_one_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    async with App(url) as one, App(url) as two:

        @one.task(name="t")
        async def t(n: int) -> int:
            return n

        async with work(one):
            job = await two.stub("t").enqueue(5)
            assert await job.result(timeout=30) == 5
            jobs = await asyncio.gather(*(app.stub("t").enqueue(n) for n in range(10) for app in (one, two)))
            assert sum(await asyncio.gather(*(job.result(timeout=30) for job in jobs))) == 90


def test_the_same_app_in_one_loop_after_the_other(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'jobs.db'}")

    @app.task
    async def t() -> None: ...

    async def once() -> int:
        async with app:
            await asyncio.gather(*(t.enqueue() for _ in range(5)))
            return (await app.jobs.list(limit=0, count=True)).total or 0

    assert [asyncio.run(once()) for _ in range(3)] == [5, 10, 15]


async def test_a_worker_continues_when_another_user_leaves_the_app(bare: App) -> None:
    @bare.task(inline=True)
    async def t(n: int) -> int:
        return n

    async with work(bare):
        async with bare:
            assert await (await t.enqueue(1)).result(timeout=30) == 1
        assert await (await t.options(inline=False).enqueue(2)).result(timeout=30) == 2
        assert bare._core.loop is not None
    assert bare._core.loop is None


async def test_closing_the_app_cancels_no_task_that_enqueues_an_inline_job(
    bare: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @bare.task(name="t", inline=True)
    async def t() -> None: ...

    begun = asyncio.Event()

    async def start(core: WorkerCore) -> None:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(WorkerCore, "start", start)
    enqueuing = asyncio.create_task(t.enqueue())
    await begun.wait()
    await bare.close()
    job = await enqueuing
    assert f"could not run the inline jobs {job.id} here" in caplog.text


async def test_a_parameter_may_be_called_self(app: App) -> None:
    """The function's own parameter, in every way to make a job."""

    @app.task(name="says")
    async def says(self: int, n: int = 0) -> int:
        return self + n

    async with work(app):
        assert await (await says.enqueue(self=3)).result(timeout=30) == 3
        jobs = await app.enqueue(
            [says.job(self=1, n=1), says.options(priority=1).job(self=2), app.stub("says").job(self=5)]
        )
        assert [await job.result(timeout=30) for job in jobs] == [2, 2, 5]


async def test_a_path_is_refused_with_the_url_to_pass(app: App) -> None:
    @app.task(name="read")
    async def read(path: Path) -> None: ...

    with pytest.raises(BadArgument, match="annotate the parameter with str and pass str"):
        read.job(Path("/etc/hosts"))
