"""`Lifespan`, the object that `@app.lifespan` makes from an async generator function."""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from treadle.core import ids
from treadle.core.errors import BadOption, LifespanFailed, NotRunning
from treadle.core.injected import signature_of


def described(error: BaseException, function: Any) -> str:
    """`OSError: no database (shop.py, line 12)`."""
    message, kind = " ".join(str(error).split()), type(error).__name__
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(function, "__code__", None)
    own = None if code is None else code.co_filename
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == own]
    place = f" ({lines[-1].filename}, line {lines[-1].lineno})" if lines else ""
    return f"{kind}{': ' if message else ''}{message}{place}"


NONE: Final[Any] = object()
"""The state of an app without a lifespan."""


class HasState(Protocol):
    """An object with the state of a lifespan; NONE without a lifespan."""

    state: Any


class HasLife(Protocol):
    """Where a job runs."""

    @property
    def life(self) -> HasState: ...


def state_of(site: HasLife | None) -> Any:
    """The state of the lifespan there. Raises NotRunning if there is none."""
    state = NONE if site is None else site.life.state
    if state is NONE:
        raise NotRunning(
            'the app of this job has no lifespan: declare one with @app.lifespan, and a task of kind="process" at the '
            "top level of its module"
        )
    return state


S = TypeVar("S")

EXPECTED = "expected an async generator function of no argument or of the app, which yields once"


class Lifespan(Generic[S]):
    """The lifespan of an app. Calling it calls the function, for a test or another framework."""

    def __init__(self, function: Callable[..., Any], app: object) -> None:
        plain = function if inspect.isasyncgenfunction(function) else inspect.unwrap(function)  # @asynccontextmanager
        if not inspect.isasyncgenfunction(plain):
            raise BadOption("lifespan", f"{EXPECTED}, found {function!r}{_hint(plain)}")
        self._takes_app = _takes_app(plain)
        self._function: Callable[..., AsyncGenerator[S, None]] = plain
        self._app = app
        self.__wrapped__ = plain
        self.__name__, self.__qualname__, self.__module__ = plain.__name__, plain.__qualname__, plain.__module__
        self.__doc__ = plain.__doc__

    def __call__(self, /, *args: Any) -> AsyncGenerator[S, None]:
        return self._function(*args)

    def __repr__(self) -> str:
        return f"<lifespan {self.name}>"

    @property
    def name(self) -> str:
        """The module and the name of its function."""
        return f"{self.__module__}.{self.__qualname__}"

    @property
    def state(self) -> S:
        """The value that it yielded, in a running job: `current().state` with its type. Raises NotRunning."""
        run = ids.running.get(None)
        if run is None:
            raise NotRunning("the state of a lifespan was read outside a job: read it in a task while a worker runs it")
        return cast("S", state_of(run.site))

    def begin(self) -> AsyncGenerator[S, None]:
        """A new generator."""
        return self._function(self._app) if self._takes_app else self._function()

    def problem(self, words: str) -> Exception:
        """The error of a lifespan that yields never or twice."""
        return LifespanFailed(self.name, words)

    def failed(self, error: BaseException, when: str) -> LifespanFailed:
        """The error to raise for an exception of the function; `when` says where it came from."""
        if isinstance(error, LifespanFailed):
            return error
        failure = LifespanFailed(self.name, f"failed {when}: {described(error, self._function)}")
        failure.__cause__ = error
        return failure


def _takes_app(function: Callable[..., Any]) -> bool:
    parameters = list(signature_of(function).parameters.values())
    needed = [argument for argument in parameters if argument.default is argument.empty and argument.kind not in (2, 4)]
    if len(needed) > 1 or any(parameter.kind is parameter.KEYWORD_ONLY for parameter in needed):
        raise BadOption("lifespan", f"{EXPECTED}, found {function.__qualname__}{signature_of(function)}")
    return bool(needed)


def _hint(function: object) -> str:
    if inspect.isgeneratorfunction(function):
        return ": write it as `async def`"
    return ": it has no `yield`" if inspect.iscoroutinefunction(function) else ""
