"""What a forked child must not share with its parent: locks, sockets, connections, ids, and the parent's own code.

A forked child has the open files of its parent. A lock or a socket that the child keeps outlives a killed parent: the
file stays locked, and messages for the parent are queued for nobody. Whatever must be unique compares `tag`. A child
that returned from a task's function into the worker's code would settle its parent's jobs: it ends with the function.
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
    """An object with a descriptor that belongs to one process."""

    def forked(self) -> None:
        """Close our copy of the descriptor. Runs in the child, before anything else runs there."""
        ...


opening: Final = threading.RLock()
"""Held from before a descriptor is opened until its owner is registered: no process is forked in between."""

_owners: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
_left: Final[list[object]] = []


def register(owner: Forked) -> None:
    """In each forked child, call `owner.forked()`."""
    _owners.add(owner)


def leave(thing: object) -> None:
    """Never destroy this object, not even when the interpreter ends."""
    if not _left:
        atexit.register(_leave_for_ever)
    _left.append(thing)


def _leave_for_ever() -> None:
    """The end of the interpreter destroys what its modules hold; an object with one reference too many stays."""
    import ctypes

    for thing in _left:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _in_child() -> None:
    try:
        for owner in list(_owners):
            owner.forked()
    finally:
        opening.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=opening.acquire, after_in_parent=opening.release, after_in_child=_in_child)


# --- which process this is, and where a forked one ends

tag = ""
"""12 hex digits that no other process has; empty in a process that was not forked by Python. Compare by `is`."""


def renew() -> None:
    """From here on this is a process of its own: a forked child, or one that runs functions for a worker."""
    global tag  # noqa: PLW0603 - a fork changes it
    tag = os.urandom(6).hex()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=renew)


def contained(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call it. A child that the function forked ends here, whether it returns or raises."""
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
    """End this forked child at once, with the exit code that the error means, and run nothing of its parent's."""
    code = 0 if error is None else 1
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            code = error.code or 0
        else:
            _print(str(error.code))
    elif error is not None:
        _print("".join(traceback.format_exception(error)).rstrip())
    for stream in (sys.stdout, sys.stderr):
        with suppress(BaseException):  # closed, or held by a thread that the fork did not copy
            stream.flush()
    os._exit(code & 0xFF)


def _print(text: str) -> None:
    with suppress(BaseException):
        sys.stderr.write(f"{text}\n")
