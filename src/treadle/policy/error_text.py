"""An exception as text: its summary and its traceback, as a row stores them."""

from __future__ import annotations

import traceback
from types import TracebackType
from typing import Final

from treadle.core import defaults
from treadle.core.errors import RemoteFailure, is_ours
from treadle.policy.retry import Abort, Defer, RetryAfter

SUMMARY: Final = 300  # characters of an error's summary line


def text_of(error: BaseException) -> str:
    """An exception as stored in the row: a line with its type and the first line of its message, then its traceback
    without Treadle's own frames; at most 10,000 characters. `errors.error_line` reads the first line. Of `raise
    Retry.after(...) from error`, it is that error; a verdict that has no cause has no traceback."""
    if is_deliberate(error):
        return cut(message_of(error) if isinstance(error, Abort) else _summary(error))
    if isinstance(error, RetryAfter):
        error = error.__cause__ or error
    if isinstance(error, RemoteFailure):
        return cut(error.text)  # the process that raised it has formatted it
    try:
        formatted = traceback.TracebackException(type(error), error, _of_others(error.__traceback__), compact=True)
        _without_ours(formatted)
        trace = "".join(formatted.format()).rstrip()
    except BaseException as broken:  # a broken attribute, such as `__notes__`
        trace = f"(its traceback cannot be shown: {type(broken).__name__})"
    return cut(f"{_summary(error)}\n{trace}")


def is_deliberate(error: BaseException) -> bool:
    """Whether the task raised a verdict that no other error caused. The author knows where the code does so."""
    return isinstance(error, Abort | Defer | RetryAfter) and error.__cause__ is None


def message_of(error: BaseException) -> str:
    """`str` of an exception; the reason why there is none if that raises."""
    try:
        return str(error)
    except BaseException as broken:  # also SystemExit, which must not end the worker
        return f"its text cannot be shown: {type(broken).__name__}"


def _summary(error: BaseException) -> str:
    """The type and the first line of the message; for a group, also those of its first exception."""
    module, name = type(error).__module__, type(error).__qualname__
    if module not in ("builtins", "__main__"):
        name = f"{module}.{name}"
    message = next((line.strip() for line in message_of(error).splitlines() if line.strip()), "")
    line = f"{name}: {message}" if message else name
    if isinstance(error, BaseExceptionGroup):
        line += f": {_summary(error.exceptions[0])}"
    return line if len(line) <= SUMMARY else line[: SUMMARY - 3] + "..."


def cut(text: str) -> str:
    """The text, shortened in the middle to 10,000 characters; characters that UTF-8 cannot encode are replaced."""
    text = text.encode("utf-8", "replace").decode()
    if len(text) > defaults.MAX_ERROR:
        half = defaults.MAX_ERROR // 2 - 20
        text = f"{text[:half]}\n... (shortened) ...\n{text[-half:]}"
    return text


def _of_others(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without Treadle's own frames. There are about six, and formatting one takes 15 us."""
    others: list[TracebackType] = []
    while trace is not None:
        if not is_ours(trace.tb_frame.f_code.co_filename):
            others.append(trace)
        trace = trace.tb_next
    kept: TracebackType | None = None
    for frame in reversed(others):
        kept = TracebackType(kept, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return kept


def _without_ours(formatted: traceback.TracebackException) -> None:
    """Remove Treadle's own frames, also from causes, contexts and groups."""
    every: list[traceback.TracebackException | None] = [formatted]
    while every:
        part = every.pop()
        if part is not None:
            kept = [frame for frame in part.stack if not is_ours(frame.filename)]
            part.stack = traceback.StackSummary.from_list(kept)
            every += [part.__cause__, part.__context__, *(part.exceptions or ())]
