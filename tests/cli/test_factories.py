"""Apps that a function makes: `module:create_app()`, and --factory."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from tests.cli.tools import Command
from treadle import App
from treadle.cli import main
from treadle_testkit.shows import shows

FACTORY = """
from treadle import App


def create_app() -> App:
    app = App("sqlite:///jobs.db")

    @app.task(name="seven")
    async def seven() -> int:
        return 7

    return app


def broken() -> App:
    raise ValueError("no settings")


def other() -> int:
    return 3
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    name = f"factory_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TREADLE_URL", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path / f"{name}.py"


@shows("a command takes `module:create_app()`, or `module:create_app` with --factory")
@pytest.mark.parametrize(
    "named", [["{}:create_app()"], ["{}:create_app", "--factory"], ["{}:create_app()", "--factory"]]
)
def test_commands_call_the_factory(here: Path, named: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    app = [word.format(here.stem) for word in named]
    assert main(["enqueue", "seven", "--app", *app]) == 0
    assert main(["enqueue", "nine", "--app", *app]) == 2
    assert main(["jobs", "list", "--app", f"{here.name}:create_app()"]) == 0
    assert main(["storage", "check", *app]) == 0
    assert "1 unfinished job checked" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the supervisor needs signals and process groups")
def test_a_worker_calls_the_factory(here: Path) -> None:
    with Command("worker", f"{here.stem}:create_app", "--factory", cwd=here.parent) as worker:
        worker.wait_for("claiming jobs")

        async def seven() -> int:
            async with App(f"sqlite:///{here.parent / 'jobs.db'}") as app:
                job = await app.stub("seven").enqueue()
                return int(await job.result(timeout=30))

        assert asyncio.run(seven()) == 7
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["jobs", "list", "--app", "{}:create_app"], "is function, not a treadle.App; if it returns one: '{}:cre"),
        (["jobs", "list", "--app", "{}:other()"], "'{}:other()' is int, not a treadle.App"),
        (["jobs", "list", "--app", "{}:broken()"], "ValueError: no settings"),
        (["jobs", "list", "--app", "{}:missing()"], "has no 'missing'"),
        (["jobs", "list", "--factory"], "--factory expects MODULE:FUNCTION, found no app"),
        (["worker", "{}", "--factory"], "--factory expects MODULE:FUNCTION, found {}"),
    ],
)  # fmt: skip
def test_other_names_are_explained(
    here: Path, words: list[str], answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word.format(here.stem) for word in words]) in (1, 2)
    assert answer.format(here.stem, here.stem) in capsys.readouterr().err
