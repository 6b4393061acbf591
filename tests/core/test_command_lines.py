"""The command lines in messages."""

from __future__ import annotations

import pytest

from treadle.core.command_lines import PROGRAM, command, typed
from treadle.errors import UnknownSchedule

MANAGE = "python manage.py treadle"


def test_names_are_quoted_for_a_shell() -> None:
    assert command("jobs", "show", "-1", options=["--url", "a b"]) == "`treadle jobs show --url 'a b' -- -1`"
    assert command("queues", "pause", "a;b") == "`treadle queues pause 'a;b'`"


def test_a_project_of_django_types_manage_py(monkeypatch: pytest.MonkeyPatch) -> None:
    error = UnknownSchedule("nightly")
    assert "`treadle schedules list`" in str(error)
    monkeypatch.setenv(PROGRAM, MANAGE)
    assert f"`{MANAGE} schedules list`" in str(error)
    assert command("jobs", "show", "-1") == f"`{MANAGE} jobs show -- -1`"


@pytest.mark.parametrize(
    ("text", "there"),
    [
        ("start one: `treadle worker module:app --queues a`", f"start one: `{MANAGE} worker --queues a`"),
        ("`treadle storage migrate --app MODULE:APP`, or not", f"`{MANAGE} storage migrate`, or not"),
        ("treadle jobs list", f"{MANAGE} jobs list"),
        ("the package treadle has `treadle_testkit`", "the package treadle has `treadle_testkit`"),
        (f"`{MANAGE} doctor`", f"`{MANAGE} doctor`"),
    ],
)
def test_commands_in_a_text(monkeypatch: pytest.MonkeyPatch, text: str, there: str) -> None:
    assert typed(text) == text
    monkeypatch.setenv(PROGRAM, MANAGE)
    assert typed(text) == there
