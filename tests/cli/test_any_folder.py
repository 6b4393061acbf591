"""Modules of the user that have the names of Python's own: no worker and no server imports them by mistake."""

from __future__ import annotations

import asyncio
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.tools import Command
from tests.fixtures import KINDS, a_url
from treadle import App
from treadle_testkit.shows import shows

pytestmark = [
    pytest.mark.slow,  # each starts interpreters
    pytest.mark.skipif(sys.platform == "win32", reason="the supervisor needs signals and process groups"),
]

APP = """
from treadle import App

app = App({url!r})


@app.task
async def in_the_loop(n: int) -> int:
    return n


@app.task
def in_a_thread(n: int) -> int:
    return n


@app.task(kind="process")
def in_a_process(n: int) -> int:
    return n
"""
TASKS = ("in_the_loop", "in_a_thread", "in_a_process")
FAILS = "raise RuntimeError(__name__ + ' of the folder was imported')\n"


def folder_of(folder: Path, url: str, names: list[str]) -> Path:
    for name in names:
        (folder / f"{name}.py").write_text(FAILS)
    (folder / "shop.py").write_text(APP.format(url=url))
    return folder


async def results(url: str) -> list[int]:
    app = App(url)
    async with app:
        jobs = [await app.stub(f"shop.{task}").enqueue(n=7) for task in TASKS]
        return [await job.result(timeout=60) for job in jobs]


def every_public_name() -> list[str]:
    """Those that this Python has: programs try the others, which belong to other systems, and go on without them."""
    return [name for name in sorted(sys.stdlib_module_names) if not name.startswith("_") and find_spec(name)]


def run_beside(here: Path, url: str, *command: str, says: str, flags: tuple[str, ...] = ()) -> str:
    """Run a command there until it says this, let it run jobs, and stop it. Returns its stderr."""
    with Command(*command, cwd=here, flags=flags) as running:
        running.wait_for(says)
        assert asyncio.run(results(url)) == [7, 7, 7]
        running.signal(signal.SIGTERM)
        assert running.ended() == 0
    return running.stderr


@shows("a worker starts and runs jobs in a folder whose files have the names of all modules of Python")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "memory"])
def test_a_worker_next_to_files_with_the_name_of_every_module_of_python(tmp_path: Path, kind: str) -> None:
    here = tmp_path / "here"
    here.mkdir()
    with a_url(kind, tmp_path) as url:
        folder_of(here, url, every_public_name())
        stderr = run_beside(here, url, "worker", "shop:app", says="claiming jobs", flags=("-P",))
        assert "of the folder" not in stderr


@shows("a server, its workers and the supervisor of --reload start next to files named as every module of Python")
@pytest.mark.parametrize(
    "command",
    [
        ("up", "shop:app", "--port", "0"),
        ("up", "shop:app", "--port", "0", "--roles", "leader,follower"),
        ("up", "shop:app", "--port", "0", "--reload"),
        ("worker", "shop:app", "--reload"),
    ],
    ids=" ".join,
)
def test_other_commands_next_to_such_files(tmp_path: Path, command: tuple[str, ...]) -> None:
    here = tmp_path / "here"
    here.mkdir()
    with a_url("sqlite", tmp_path) as url:
        folder_of(here, url, every_public_name())
        stderr = run_beside(here, url, *command, says="jobs live in", flags=("-P",))
        assert "of the folder" not in stderr


@shows("`python -m treadle` runs next to a queue.py, select.py, token.py or statistics.py")
def test_python_dash_m_next_to_modules_with_common_names(tmp_path: Path) -> None:
    """Python itself imports `types` before any line of ours; the script `treadle` runs next to a types.py too."""
    here = tmp_path / "here"
    here.mkdir()
    with a_url("sqlite", tmp_path) as url:
        folder_of(here, url, ["queue", "select", "token", "statistics", "secrets", "random", "json", "email"])
        run_beside(here, url, "worker", "shop:app", says="claiming jobs")


def test_a_module_of_the_user_that_treadle_does_not_need_is_imported_from_the_folder(tmp_path: Path) -> None:
    (tmp_path / "antigravity.py").write_text("RATE = 3\n")
    (tmp_path / "shop.py").write_text(
        APP.format(url="memory://") + "\nimport antigravity, sys\nprint(f'rate {antigravity.RATE}', file=sys.stderr)\n"
    )
    with Command("worker", "shop:app", cwd=tmp_path) as worker:
        worker.wait_for("rate 3")
        worker.wait_for("claiming jobs")
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0
