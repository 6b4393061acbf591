"""`dev.py`: which environment its steps get, and the last line of its report of a test run."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def dev() -> Any:
    spec = importlib.util.spec_from_file_location("dev", ROOT / "dev.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.__dict__["django_six"] = list
    return module


class Pytest:
    """Replaces `dev.call`: returns the next exit code and output for each run of pytest."""

    def __init__(self, *runs: tuple[int, str]) -> None:
        self.runs, self.commands = list(runs), list[list[str]]()

    def __call__(self, command: list[str], **_: object) -> tuple[int, str]:
        self.commands.append(command)
        return self.runs.pop(0)


GREEN = "====== 12 passed, 3 skipped, 1 deselected, 2 xfailed, 1 warning in 4.20s (0:00:04) ======"
RED = "FAILED tests/a.py::test_late - assert 1\nERROR tests/b.py::test_gone\n== 1 failed, 9 passed, 1 error in 1s =="


def test_a_step_sees_the_settings_of_package_clients_and_ours_and_nothing_else(
    dev: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    kept = {
        "HOME": "/home/me",
        "PIP_CERT": "a",
        "UV_INDEX": "b",
        "npm_config_cafile": "d",
        "https_proxy": "c",
        "TEST_LOOP": "uvloop",
        "LANG": "C",
    }
    dropped = {"PYTHONUNBUFFERED": "1", "PYTHONPATH": "x", "TREADLE_URL": "y", "PYTEST_ADDOPTS": "-x", "CI": "1"}
    assert dev.scrubbed(kept | dropped) == kept
    for name, text in (kept | dropped).items():
        monkeypatch.setenv(name, text)
    show = [sys.executable, "-c", "import os; print(*sorted(os.environ))"]
    code, said = dev.call(show, show=False, keep=True)
    seen = set(said.split())
    assert code == 0
    assert seen >= {*kept, "PATH", "VIRTUAL_ENV"}
    assert not seen & set(dropped)
    assert set(dev.call(show, show=False, keep=True, inherit=True)[1].split()) >= set(dropped)


def test_the_last_line_counts_skips_and_expected_failures(
    dev: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for said, counts in (
        (GREEN, "12 passed, 3 skipped, 2 expected failures, 1 deselected, 1 warning"),
        ("12 passed in 1.00s", "12 passed, 0 skipped, 0 expected failures"),
    ):
        run = Pytest((0, said))
        monkeypatch.setattr(dev, "call", run)
        monkeypatch.setattr(dev, "checks", lambda: [("style", True, "1 s")])
        assert dev.test([]) == 0
        last = capsys.readouterr().out.splitlines()[-1]
        assert last == f"all passed ({counts}); `--all` runs the slow tests too"
        assert len(run.commands) == 1


def test_the_slow_tests_run_with_all(
    dev: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dev, "checks", list)
    monkeypatch.setattr(dev, "django_six", lambda: [("tests: Django 6", True, "1 s")])
    run = Pytest((0, GREEN), (0, GREEN))
    monkeypatch.setattr(dev, "call", run)
    assert dev.test([]) == 0
    assert "Django 6" not in capsys.readouterr().out
    assert dev.test(["--all"]) == 0
    assert "Django 6" in capsys.readouterr().out
    without, everything = run.commands
    assert [word for word in without if word not in everything] == ["not slow and not soak"]


@pytest.mark.parametrize("again", [0, 1])
def test_a_second_try_is_only_for_a_person_and_never_turns_a_run_green(
    dev: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], again: int
) -> None:
    monkeypatch.setattr(dev, "checks", lambda: [("style", True, "1 s")])
    counts = "9 passed, 0 skipped, 0 expected failures, 1 failed, 1 errors"
    once = Pytest((1, RED))
    monkeypatch.setattr(dev, "call", once)
    assert dev.test([]) == 1
    assert len(once.commands) == 1
    assert capsys.readouterr().out.splitlines()[-1] == f"failed: tests ({counts}); `--all` runs the slow tests too"

    twice = Pytest((1, RED), (again, "2 passed in 1s"))
    monkeypatch.setattr(dev, "call", twice)
    assert dev.test(["--retry"]) == 1
    assert len(twice.commands) == 2
    became = "FAILED AGAIN" if again else "passed only at the second try"
    last = capsys.readouterr().out.splitlines()[-1]
    tried = f"--retry: {became}: tests/a.py::test_late tests/b.py::test_gone"
    assert last == f"failed: tests ({counts}); `--all` runs the slow tests too; {tried}"


def test_a_run_that_broke_off_is_not_tried_again(
    dev: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dev, "checks", list)
    broken = Pytest((3, "INTERNALERROR> boom"))
    monkeypatch.setattr(dev, "call", broken)
    assert dev.test(["--retry"]) == 1
    assert len(broken.commands) == 1
    assert "not tried again" in capsys.readouterr().out.splitlines()[-1]
