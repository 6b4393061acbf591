"""`depends(...)`, the default of a parameter whose value the worker provides."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Literal, NoReturn, TypeVar, overload

from treadle.core.errors import BadDependency
from treadle.core.injected import Injected
from treadle.resources.lifespan import Lifespan

T = TypeVar("T")

Scope = Literal["process", "run"]


class Dependency(Injected):
    """A provider and its scope. It stands for the value until the worker provides that."""

    __slots__ = ("provider", "scope")

    def __init__(self, provider: Callable[..., Any], scope: Scope) -> None:
        self.provider, self.scope = provider, scope

    def __repr__(self) -> str:
        return f"depends({name_of(self.provider)})"

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"{self!r} has no value here: a worker provides it when it runs the task. In a direct call, pass the value",
            name=name,
            obj=self,
        )


@overload
def depends(provider: Lifespan[T], *, scope: Scope = "run") -> T: ...
@overload
def depends(provider: Callable[..., AsyncIterator[T]], *, scope: Scope = "run") -> T: ...
@overload
def depends(provider: Callable[..., Iterator[T]], *, scope: Scope = "run") -> T: ...
@overload
def depends(provider: Callable[..., Coroutine[Any, Any, T]], *, scope: Scope = "run") -> T: ...
@overload
def depends(provider: Callable[..., T], *, scope: Scope = "run") -> T: ...
def depends(provider: Callable[..., Any], *, scope: Scope = "run") -> Any:
    """The default of a parameter of a task, or of another provider: `session: Session = depends(get_session)`.

    provider  a function or an async function that returns the value, a generator or an async generator that yields it
              once and closes it after the yield, or the lifespan of the app, whose value is its state
    scope     "run": a new value for each attempt. "process": one value for the worker process, made before it claims

    A dependency is not part of a call: `task.enqueue(...)` refuses it. Raises BadDependency.
    """
    if not callable(provider):
        raise BadDependency(
            "depends()", f"expected a function that provides a value, found {provider!r}{_hint(provider)}"
        )
    if scope not in ("process", "run"):
        raise BadDependency(name_of(provider), f'scope: expected "process" or "run", found {scope!r}')
    return Dependency(provider, scope)


def _hint(provider: object) -> str:
    """For `depends(get())`. Closes the coroutine, which nothing awaits."""
    if isinstance(provider, Coroutine):
        provider.close()
    elif not isinstance(provider, Iterator | AsyncIterator):
        return ""
    return f": give the function itself, depends({getattr(provider, '__name__', 'provider')})"


def name_of(provider: Any) -> str:
    """How errors name a provider."""
    if isinstance(provider, Lifespan):
        return provider.name
    name = getattr(provider, "__qualname__", None)
    return f"{provider.__module__}.{name}" if name else repr(provider)
