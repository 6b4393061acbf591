"""`treadle shell`: a Python prompt with the app open, in which `await` works.

Statements run in the main thread, so that `app.sync` works too. The coroutines that they await run on the app's event
loop in another thread, which continues between two statements.
"""

from __future__ import annotations

import ast
import asyncio
import code
import contextlib
import inspect
import sys
import threading
import traceback
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final

import click

from treadle.cli.options import optional_app
from treadle.cli.output import FAILED, OK, note
from treadle.cli.target import Target, move_of

if TYPE_CHECKING:
    from treadle.app import App

PARTS: Final = ("jobs", "queues", "limits", "schedules", "workflows", "dead", "metrics", "audit")  # parts of the app
CLOSING: Final = 10.0  # s that closing the app may take
SHOWN: Final = 12  # names of tasks in the banner


@click.command()
@optional_app
@click.option("--url", metavar="URL", help="Storage URL, to work without the code of an app.")
def shell(app: str | None, url: str | None) -> int:
    """Open a Python prompt with the app MODULE:APP, its parts and its tasks as names, in which `await` works.

    Without MODULE:APP and --url it opens the only app in this directory. It uses IPython if that is installed. From a
    pipe it runs each statement, shows the values of expressions, and ends with 1 after an error.
    """
    if app is None and url is None:
        from treadle.cli.app_loader import find_any

        app = find_any()[1].named
    target = Target(url, app)
    target.check_there(make=True)
    with opened(target.app) as loop:
        names = names_of(target.app)
        if not sys.stdin.isatty():
            return _piped(names, loop)
        banner = _banner(target, names)
        if _in_ipython(names, banner):
            return OK
        return _interact(names, loop, banner)


@contextlib.contextmanager
def opened(app: App) -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop in a thread, on which the app is open."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="treadle-shell", daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(app.open(), loop).result()
        if (moved := asyncio.run_coroutine_threadsafe(move_of(app), loop).result()) is not None:
            note(f"treadle: {moved}")
        yield loop
    finally:
        closing = asyncio.run_coroutine_threadsafe(app.close(), loop)
        with contextlib.suppress(TimeoutError):
            closing.result(CLOSING)
        asyncio.run_coroutine_threadsafe(_rest_cancelled(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _rest_cancelled() -> None:
    """Cancel the tasks that statements have started and not awaited."""
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def names_of(app: App) -> dict[str, Any]:
    """The names in scope: the app, its parts, and its tasks by their last name where only one task has it."""
    import treadle

    short: dict[str, list[Any]] = {}
    for name, task in app.tasks.items():
        short.setdefault(name.rpartition(".")[2], []).append(task)
    tasks = {name: same_name[0] for name, same_name in short.items() if len(same_name) == 1 and name.isidentifier()}
    parts = {name: getattr(app, name) for name in PARTS}
    return {**tasks, **parts, "app": app, "tasks": app.tasks, "treadle": treadle, "asyncio": asyncio}


def _banner(target: Target, names: dict[str, Any]) -> str:
    from treadle import __version__

    tasks = sorted(name for name in names if hasattr(names[name], "enqueue") and name != "app")
    more = f" and {len(tasks) - SHOWN} more" if len(tasks) > SHOWN else ""
    lines = [
        f"Treadle {__version__}, Python {sys.version.split()[0]}; jobs live in {target.url}",
        f"app, tasks, {', '.join(PARTS)}",
        *([f"tasks: {', '.join(tasks[:SHOWN])}{more}"] if tasks else []),
        "`await` works: await jobs.list(limit=5)",
    ]
    return "\n".join(lines)


def _in_ipython(names: dict[str, Any], banner: str) -> bool:
    """Run IPython until its end. Returns whether it is installed."""
    try:
        from IPython import start_ipython  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return False
    click.echo(banner, err=True)
    start_ipython(argv=["--no-banner"], user_ns=names)
    return True


def _interact(names: dict[str, Any], loop: asyncio.AbstractEventLoop, banner: str) -> int:
    with contextlib.suppress(ImportError):  # Windows has none
        import readline
        import rlcompleter

        readline.set_completer(rlcompleter.Completer(names).complete)
        readline.parse_and_bind("tab: complete")
    try:
        Console(names, loop).interact(banner, exitmsg="")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else OK
    return OK


def _piped(names: dict[str, Any], loop: asyncio.AbstractEventLoop) -> int:
    """Run the statements on stdin one by one -> the exit code."""
    console = Console(names, loop)
    try:
        tree = ast.parse(sys.stdin.read(), "<stdin>")
        for statement in tree.body:
            single = ast.Interactive([statement])
            console.call(compile(single, "<stdin>", "single", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else OK if ended.code is None else FAILED
    except Exception as error:
        _show(error)
        return FAILED
    return OK


class Console(code.InteractiveConsole):
    """A prompt whose statements may await."""

    def __init__(self, names: dict[str, Any], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(names)
        self.compile.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        self._loop = loop

    def runcode(self, code: CodeType) -> None:
        """Run one statement, and show its error."""
        try:
            self.call(code)
        except Exception as error:
            _show(error)

    def call(self, statement: CodeType) -> None:
        """Run one statement. Ctrl-C cancels the call that it awaits."""
        display, sys.displayhook = sys.displayhook, _display
        try:
            work = FunctionType(statement, self.locals)()
            if not inspect.iscoroutine(work):
                return
            waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
            try:
                waiting.result()
            except KeyboardInterrupt:
                waiting.cancel()
                raise
        finally:
            sys.displayhook = display


def _display(value: object) -> None:
    """Show the value of a statement. Raises RuntimeError for a coroutine, which nothing would await."""
    if inspect.iscoroutine(value):
        value.close()
        raise RuntimeError("this call was not carried out, because nothing awaits it: write `await` before it")
    sys.__displayhook__(value)


def _show(error: Exception) -> None:
    """Print the traceback without the frames of this module and of asyncio."""
    tb = error.__traceback__
    while tb is not None and not tb.tb_frame.f_code.co_filename.startswith(("<stdin>", "<console>")):
        tb = tb.tb_next
    shown = traceback.TracebackException(type(error), error, tb)
    shown.stack = traceback.StackSummary.from_list([frame for frame in shown.stack if frame.filename != __file__])
    click.echo("".join(shown.format()), err=True, nl=False)
