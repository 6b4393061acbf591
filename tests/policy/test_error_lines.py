"""The summary line of a stored error: the type of the exception and the first line of its message."""

from __future__ import annotations

import msgspec
import pytest

from treadle.errors import JobFailed, error_line, traceback_of
from treadle.policy.error_text import SUMMARY, text_of


class Odd(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def raised(error: BaseException) -> str:
    try:
        raise error
    except BaseException as caught:
        return text_of(caught)


def noted() -> ValueError:
    error = ValueError("no such order")
    error.add_note("while handling order 7")
    return error


LONG = "\n".join(
    ["1 validation error for Order", "total", "  Input should be a number", "  For further information: x"]
)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("boom"), "ValueError: boom"),
        (ValueError(), "ValueError"),
        (noted(), "ValueError: no such order"),
        (ValueError(LONG), "ValueError: 1 validation error for Order"),
        (ValueError("\n\n  stderr was:\n\n"), "ValueError: stderr was:"),
        (msgspec.ValidationError("expected int"), "msgspec.ValidationError: expected int"),
        (
            ExceptionGroup("unhandled errors in a TaskGroup", [KeyError("a"), ValueError("b")]),
            "ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions): KeyError: 'a'",
        ),
        (SyntaxError("invalid syntax", ("x.py", 1, 1, "a b", 1, 2)), "SyntaxError: invalid syntax (x.py, line 1)"),
        (Odd(), f"{__name__}.Odd: its text cannot be shown: RuntimeError"),
    ],
)
def test_the_first_line_has_the_type_and_the_first_line_of_the_message(error: BaseException, line: str) -> None:
    text = raised(error)
    assert error_line(text) == line
    assert str(JobFailed("1", "t", "error", text)).endswith(f": {line}")


def test_the_traceback_follows_it() -> None:
    text = raised(ValueError("boom"))
    assert (traceback_of(text) or "").startswith("Traceback (most recent call last)")
    assert (traceback_of(raised(ExceptionGroup("g", [KeyError("a")]))) or "").startswith(
        "  + Exception Group Traceback"
    )
    assert traceback_of("exit code 3") is None
    assert traceback_of(None) is None


def test_a_long_message_is_cut() -> None:
    line = error_line(raised(ValueError("x" * 5_000)))
    assert len(line) == SUMMARY
    assert line.endswith("...")


FOREIGN = """Traceback (most recent call last):
  File "runner.py", line 3, in <module>
    work()
    ~~~~^^
requests.exceptions.HTTPError: 503 for url: x
while handling order 7"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (FOREIGN, "requests.exceptions.HTTPError: 503 for url: x"),
        ("  two lines\nof a runner in another language", "two lines"),
        ("Traceback (most recent call last):", "Traceback (most recent call last):"),
        ("", ""),
        (None, ""),
    ],
)
def test_the_error_line_of_another_runner_is_found(text: str | None, line: str) -> None:
    assert error_line(text) == line
