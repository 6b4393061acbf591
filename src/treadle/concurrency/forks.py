"""Separates a forked child from its parent: locks, sockets, connections, ids, and the parent's code.

A forked child inherits the open files of its parent. If it kept a lock or a socket and the parent was killed, the file
would stay locked, and the socket would still receive messages that no process reads. Code that needs unique values
compares `tag`. A child forked inside a task's function must not return to the worker's code, where it would settle its
parent's jobs: it ends with the function.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NoReturn, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Forked(Protocol):
    """An object with descriptors, locks or event loops that belong to one process."""

    def forked(self) -> None:
        """Close this process's copies, and start over. Runs in the child before any other code."""
        ...


opening: Final = threading.RLock()
"""Locked while a descriptor is opened and its owner registered, so that no process is forked in between."""

_owners: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
_left: Final[list[object]] = []


def register(owner: Forked) -> None:
    """Call `owner.forked()` in each forked child."""
    _owners.add(owner)


def leave(thing: object) -> None:
    """Never destroy this object, not even at interpreter exit."""
    if not _left:
        atexit.register(_leave_for_ever)
    _left.append(thing)


def _leave_for_ever() -> None:
    """Interpreter exit destroys the objects of all modules, except those with an extra reference."""
    import ctypes

    for thing in _left:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _in_child() -> None:
    renew()
    try:
        for owner in list(_owners):
            owner.forked()
    finally:
        opening.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=opening.acquire, after_in_parent=opening.release, after_in_child=_in_child)


# --- the identity of this process, and the end of a forked child

tag = ""
"""12 hex digits, unique to this process; empty in a process that Python has not forked. Compare with `is`."""


def renew() -> None:
    """Set a new `tag`: in a forked child, and in a process that runs functions for a worker."""
    global tag  # noqa: PLW0603 - a fork changes it
    tag = os.urandom(6).hex()


def contained(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call the function. A child that it forks ends here, whether the function returns or raises."""
    before = tag
    try:
        value = function(*args, **kwargs)
    except BaseException as error:
        if tag is not before:
            end(error)
        raise
    if tag is not before:
        end()
    return value


def end(error: BaseException | None = None) -> NoReturn:
    """End this forked child at once, with the exit code of the error, without running any code of its parent."""
    code = 0 if error is None else 1
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            code = error.code or 0
        else:
            _print(str(error.code))
    elif error is not None:
        _print("".join(traceback.format_exception(error)).rstrip())
    for stream in (sys.stdout, sys.stderr):
        with suppress(BaseException):  # closed, or locked by a thread that does not exist in the child
            stream.flush()
    os._exit(code & 0xFF)


def _print(text: str) -> None:
    with suppress(BaseException):
        sys.stderr.write(f"{text}\n")
