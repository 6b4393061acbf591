"""`treadle --show-completion`: the code for each shell, and that names come from the storage, soon, or not at all."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from treadle import App, Limit
from treadle.cli import completion
from treadle.cli.root import run, treadle


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TREADLE_URL", raising=False)
    monkeypatch.setattr(completion, "WAIT", 60)
    return tmp_path


async def fill() -> None:
    async with App("sqlite:///treadle.db") as app:
        await app.enqueue(
            app.stub("shop.mail", queue="mail", id="one").job(), app.stub("shop.film", queue="film").job()
        )
        await app.limits.set(Limit("stripe", slots=2))


def completed(*words: str) -> list[str]:
    """The candidates for the last word."""
    found = completion.get_completion_class("bash")
    assert found is not None
    completion._equip(treadle, list(words[:-1]))
    comp = found(treadle, {}, "treadle", completion.VARIABLE)
    return [item.value for item in comp.get_completions(list(words[:-1]), words[-1])]


def test_names_and_ids_come_from_the_storage(here: Path) -> None:
    asyncio.run(fill())
    assert completed("queues", "pause", "") == ["film", "mail"]
    assert completed("queues", "pause", "m") == ["mail"]
    assert completed("worker", "--queues", "film,m") == ["film,mail"]
    assert completed("jobs", "list", "--task", "shop.") == ["shop.film", "shop.mail"]
    assert completed("enqueue", "shop.m") == ["shop.mail"]
    assert completed("jobs", "show", "o") == ["one"]
    assert completed("jobs", "show", "--url", "sqlite:///other.db", "o") == []
    assert not (here / "other.db").exists()
    assert completed("limits", "pause", "str") == ["stripe"]
    (here / "shop.py").write_text("from treadle import App\napp = App()\n")
    assert completed("worker", "sh") == ["shop:app"]
    assert completed("wor") == ["worker"]


def test_a_look_up_that_takes_long_or_fails_returns_no_candidates(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(fill())
    ended = threading.Event()

    async def wait(_: App) -> list[str]:
        await asyncio.to_thread(ended.wait)
        return []

    monkeypatch.setitem(completion.LOOK_UPS, "queue", wait)
    monkeypatch.setattr(completion, "WAIT", 0)
    assert completed("queues", "pause", "") == []
    ended.set()
    monkeypatch.setattr(completion, "WAIT", 60)
    (here / "broken.py").write_text("1 / 0\n")
    assert completed("jobs", "show", "--app", "broken:app", "") == []
    assert completed("jobs", "show", "--url", "nonsense://", "") == []


def test_a_shell_gets_candidates_and_never_an_error(here: Path) -> None:
    (here / "loud.py").write_text("import sys\nprint('loud')\nprint('loud', file=sys.stderr)\n1 / 0\n")
    for words, expected in (("treadle doc", "plain,doctor\n"), ("treadle jobs show --app loud:app ", "")):
        environment = {completion.VARIABLE: "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        done = subprocess.run(
            [sys.executable, "-m", "treadle"],
            cwd=here,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=True,
        )
        assert (done.stdout, done.stderr) == (expected, "")


def test_the_code_is_printed_for_each_shell(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for shell in completion.SHELLS:
        assert run(["--show-completion", shell]) == 0
        assert f"{completion.VARIABLE}={shell}_complete" in capfd.readouterr().out
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert run(["--show-completion"]) == 0
    assert "fish_complete" in capfd.readouterr().out
    monkeypatch.setenv("SHELL", "/bin/csh")
    assert run(["--show-completion"]) == 2
    assert "bash, zsh or fish" in capfd.readouterr().err
