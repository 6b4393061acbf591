"""`treadle shell`: what is in scope, that `await` works, also from a pipe, and what an error or Ctrl-C leaves."""

from __future__ import annotations

import builtins
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from treadle import App
from treadle.cli import shell
from treadle.cli.root import run

SHOP = """
from treadle import App

app = App("sqlite:///jobs.db")


@app.task
async def add(a: int, b: int) -> int:
    return a + b
"""


@pytest.fixture
def app() -> App:
    app = App("memory://")

    @app.task(name="shop.add")
    async def add(a: int, b: int) -> int:
        return a + b

    @app.task(name="shop.jobs")
    async def jobs() -> None: ...

    for name in ("a.twice", "b.twice"):
        app.task(name=name)(lambda: None)
    return app


def typed(app: App, monkeypatch: pytest.MonkeyPatch, *lines: Any) -> int:
    """Type these lines at the prompt; an exception is raised in place of a line."""
    left = iter(lines)

    def read(prompt: str = "") -> str:
        line = next(left, EOFError())
        if isinstance(line, BaseException):
            raise line
        return str(line)

    monkeypatch.setattr(builtins, "input", read)
    with shell.opened(app) as loop:
        return shell._interact(shell.names_of(app), loop, "a banner")


def test_names_in_scope_are_the_app_its_parts_and_its_tasks(app: App) -> None:
    names = shell.names_of(app)
    assert names["app"] is app
    assert names["add"] is app.tasks["shop.add"]
    assert names["jobs"] is app.jobs  # not the task
    assert "twice" not in names
    assert names["tasks"]["a.twice"].name == "a.twice"


def test_await_and_sync_calls_work_and_names_stay(
    app: App, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = (
        "job = await add.enqueue(1, 2)",
        "(await jobs.get(job.id)).job.task",
        "async def twice():",
        "    return [await add.enqueue(1, n) for n in range(2)]",
        "",
        "len(await twice())",
        "app.sync.enqueue(add.job(3, 4)).id != job.id",
        "import asyncio; await asyncio.sleep(0); asyncio.get_running_loop().is_running()",
    )
    assert typed(app, monkeypatch, *lines) == 0
    out, err = capfd.readouterr()
    assert out.split() == ["'shop.add'", "2", "True", "True"]
    assert "a banner" in err
    assert "Traceback" not in err


def test_errors_and_ctrl_c_lead_back_to_the_prompt(
    app: App, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = ("1 / 0", "add.enqueue(1, 2)", "x = (", KeyboardInterrupt(), "1 +", "'still here'", "exit(3)", "'not here'")
    assert typed(app, monkeypatch, *lines) == 3
    out, err = capfd.readouterr()
    assert out.split("\n")[:1] == ["'still here'"]
    for said in ("ZeroDivisionError", "write `await` before it", "KeyboardInterrupt", "SyntaxError"):
        assert said in err
    assert shell.__file__ not in err


def test_a_coroutine_that_a_statement_left_running_ends_with_the_shell(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ("import asyncio", "await asyncio.sleep(0); t = asyncio.create_task(asyncio.sleep(1000))")
    assert typed(app, monkeypatch, *lines) == 0


def test_ipython_is_used_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "IPython.py").write_text("def start_ipython(argv, user_ns): print(argv, sorted(user_ns)[0])\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", Terminal())
    assert run(["shell", "--url", "memory://"]) == 0
    sys.modules.pop("IPython")
    out, err = capfd.readouterr()
    assert out == "['--no-banner'] app\n"
    assert "jobs live in memory://" in err


class Terminal:
    def isatty(self) -> bool:
        return True


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


def test_a_pipe_runs_statements_shows_values_and_stops_at_an_error(shop: Path) -> None:
    text = "job = await add.enqueue(1, 2)\njob.task\nfor n in range(2):\n    n\n1 / 0\n'not here'\n"
    done = subprocess.run(
        [sys.executable, "-m", "treadle", "shell"], cwd=shop, input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stdout == "'shop.add'\n0\n1\n"
    assert "line 5" in done.stderr
    assert "ZeroDivisionError" in done.stderr
    assert ">>>" not in done.stdout + done.stderr
