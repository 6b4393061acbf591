"""Detects coroutine calls that nothing can await, and blocks opened by the wrong `with`.

Otherwise a forgotten await would lose a job with only a warning, after the web server has answered with success.
"""

from __future__ import annotations

import asyncio
import dis
import functools
import inspect
import sys
from collections.abc import Callable
from types import FrameType, MethodType
from typing import Any, Final, ParamSpec, Self, TypeVar

from treadle.core.argument_names import check_spelling
from treadle.core.errors import EventLoopError, NotAwaited

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound=type)

# The instructions after a call whose result is an argument of another call, as in `asyncio.run(task.enqueue())`.
HANDED_ON: Final = (
    "CALL",
    "PRECALL",
    "KW_NAMES",
    "LOAD_CONST",
    "LOAD_SMALL_INT",
    "LOAD_FAST",
    "LOAD_NAME",
    "LOAD_GLOBAL",
    "LOAD_DEREF",
)
# Since 3.12: what an interactive prompt does with the value of a line. Nothing awaits it there.
PRINTS: Final = "CALL_INTRINSIC"


def check_awaited(call: str, instead: str, returned: bool = False) -> None:
    """Raise NotAwaited if the caller's caller cannot await: no event loop runs, and it does not pass the coroutine to a
    function that could run one. `returned`: it may also return the coroutine, as `lambda: app.jobs.get(id)` does. Takes
    0.1 us if a loop runs."""
    if asyncio._get_running_loop() is None and not _hands_on(sys._getframe(2), returned):
        raise NotAwaited(call, instead)


def refuse_to_block(call: str, instead: str) -> None:
    """Raise EventLoopError if an event loop runs in this thread: the call waits, and would block that loop."""
    if asyncio._get_running_loop() is not None:
        raise EventLoopError(f"{call} would block the event loop that runs in this thread: write `await {instead}`")


def _hands_on(frame: FrameType, returned: bool) -> bool:
    following = next((each for each in dis.get_instructions(frame.f_code) if each.offset > frame.f_lasti), None)
    if following is None:
        return False
    # pytest rewrites `assert run(call())`: each value gets a variable whose name begins with "@py_".
    rewritten = following.opname.startswith("STORE_FAST") and "@py_" in str(following.argval)
    handed_on = following.opname.startswith(HANDED_ON) and not following.opname.startswith(PRINTS)
    return rewritten or handed_on or (returned and following.opname == "RETURN_VALUE")


class Awaited:
    """A class whose public coroutine methods raise NotAwaited where nothing can await them.

    call  the expression that users write before the method: "app.jobs"
    sync  the call without await; `{name}` is the method. Default: `app.sync.call(app.jobs.get(...))`
    more  the same for single methods, by name
    """

    __slots__ = ()

    def __init_subclass__(
        cls, call: str | None = None, sync: str | None = None, more: dict[str, str] | None = None
    ) -> None:
        super().__init_subclass__()
        if call is None:  # a subclass that a user defined
            return
        for name, method in list(vars(cls).items()):
            code = getattr(method, "__code__", None)  # functions marked by `answers_coroutine` check this themselves
            if not name.startswith("_") and code is not None and code.co_flags & inspect.CO_COROUTINE:
                through = f"app.sync.call({call}.{name}(...))"
                instead = (more or {}).get(name, sync or through).format(name=name, through=through)
                setattr(cls, name, _Checked(method, f"{call}.{name}()", instead))


class _Checked(functools.partial[Any]):
    """A coroutine method that checks before it runs. `inspect` recognises a partial of it as a coroutine function."""

    def __new__(cls, method: Callable[..., Any], call: str, instead: str) -> Self:
        made = super().__new__(cls, method)
        functools.update_wrapper(made, method)
        made.call, made.instead = call, instead
        return made

    call: str
    instead: str

    def __get__(self, obj: object, owner: type | None = None) -> Any:
        return self if obj is None else MethodType(self, obj)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if asyncio._get_running_loop() is None:
            check_awaited(self.call, self.instead, returned=True)
        try:
            return self.func(*args, **kwargs)
        except TypeError:
            check_spelling(self.func, kwargs)
            raise


def unchecked(method: Callable[P, T]) -> Callable[P, T]:
    """The coroutine method of an `Awaited` class without the check, for a caller that runs the coroutine on the event
    loop of another thread."""
    found: Callable[P, T] = getattr(method, "__wrapped__", method)
    return found


def async_block(instead: str) -> Callable[[C], C]:
    """Let a plain `with` on an async context manager raise a TypeError that says what to write, such as "write `async
    with app:`". Type checkers do not see these methods, so they still refuse the plain `with`."""

    def decorate(kind: C) -> C:
        def refused(self: object, *_: object) -> None:
            raise TypeError(f"a plain `with` does not work here: {instead}")

        for name in ("__enter__", "__exit__"):
            setattr(kind, name, refused)
        return kind

    return decorate


def plain_block(instead: str) -> Callable[[C], C]:
    """The same for a class that needs a plain `with`, where `async with` is written."""

    def decorate(kind: C) -> C:
        async def refused(self: object, *_: object) -> None:
            raise TypeError(f"`async with` does not work here: {instead}")

        for name in ("__aenter__", "__aexit__"):
            setattr(kind, name, refused)
        return kind

    return decorate
