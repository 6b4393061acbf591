"""Builds the error event of a failed job from the exception, or from the text of one."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Literal

import sentry_sdk
from sentry_sdk.utils import event_from_exception

from treadle.core.errors import RemoteFailure, error_line, users_part
from treadle.core.redaction import HIDDEN

Level = Literal["error", "warning"]

MECHANISM: Final = {"type": "treadle", "handled": False}
FRAMES: Final = 100  # frames that are read from the text of a traceback

_FRAME: Final = re.compile(
    r'^  File "(?P<file>[^"\n]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?\n(?:    (?P<code>.+)\n?)?', re.M
)
_NAMED: Final = re.compile(r"^(?P<type>[A-Za-z_][\w.]{0,200})(?:: (?P<value>.*))?$", re.S)

_reported: Final = "__treadle_reported__"


def send(error: BaseException, task: str, reason: str | None, level: Level) -> None:
    """Send the event of a run. For a `kind="process"` function, whose exception stayed in the other process, the
    frames are read from its traceback."""
    if isinstance(error, RemoteFailure):
        value = _value(error.type, error.message, error.text)
        value["module"] = error.module
        _send({"exception": {"values": [value]}}, {}, level)
        return
    raised = type(error), error, users_part(error.__traceback__) or error.__traceback__
    event, hint = event_from_exception(raised, client_options=sentry_sdk.get_client().options, mechanism=MECHANISM)
    if _is_repeated(error):  # jobs of a batch share it: Sentry drops a second event of one exception
        hint.pop("exc_info", None)
    values = event.get("exception", {}).get("values", [])
    if not any((value.get("stacktrace") or {}).get("frames") for value in values):
        event["fingerprint"] = ["treadle", task, type(error).__name__, reason or ""]
    _send(event, hint, level)


def send_text(text: str, task: str) -> None:
    """Send the event of a failure that is known only as text: of a runner in another language."""
    line = error_line(text)
    match = _NAMED.match(line)
    name, message = (match["type"], match["value"] or "") if match else ("Failure", line)
    event: dict[str, Any] = {"exception": {"values": [_value(name, message, text)]}}
    if "stacktrace" not in event["exception"]["values"][0]:
        event["fingerprint"] = ["treadle", task, name]
    _send(event, {}, "error")


def hidden(event: Any, hide: Callable[[str], str], hides: Callable[[str], bool]) -> Any:
    """The event without secrets. `hide` replaces them in a text; `hides` says whether a local variable or a key of this
    name has one."""
    for part in ("exception", "breadcrumbs", "message", "logentry"):
        if part in event:
            event[part] = _hidden(event[part], hide, hides)
    return event


def _hidden(tree: Any, hide: Callable[[str], str], hides: Callable[[str], bool], named: bool = False) -> Any:
    if isinstance(tree, str):
        return hide(tree)
    if isinstance(tree, list | tuple | deque):
        return [_hidden(part, hide, hides, named) for part in tree]
    if isinstance(tree, dict):
        return {
            name: HIDDEN if named and hides(str(name)) else _hidden(part, hide, hides, named or name == "vars")
            for name, part in tree.items()
        }
    return tree


def _send(event: Any, hint: Any, level: Level) -> None:
    event["level"] = level
    sentry_sdk.capture_event(event, hint=hint)


def _value(name: str, message: str, text: str) -> dict[str, Any]:
    value: dict[str, Any] = {"type": name, "value": message, "mechanism": MECHANISM}
    if frames := _frames(text):
        value["stacktrace"] = {"frames": frames}
    return value


def _frames(text: str) -> list[dict[str, Any]]:
    """The frames of the last traceback in this text, oldest first; []: the text has no traceback in Python's form."""
    last = text[text.rfind("Traceback (most recent call last):") :] if "Traceback (most recent" in text else ""
    return [
        {
            "filename": frame["file"],
            "abs_path": frame["file"],
            "lineno": int(frame["line"]),
            "function": frame["function"] or "?",
            "context_line": frame["code"] or "",
            "in_app": "site-packages" not in frame["file"],
        }
        for frame in list(_FRAME.finditer(last))[-FRAMES:]
    ]


def _is_repeated(error: BaseException) -> bool:
    """Whether this exception was reported before. Marks it, so that the next call returns true."""
    before = getattr(error, _reported, False)
    try:
        setattr(error, _reported, True)
    except Exception:  # an exception with `__slots__` or an own `__setattr__`
        return False
    return before
