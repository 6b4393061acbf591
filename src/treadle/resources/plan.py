"""How the dependencies of a function are made: each provider once, after those that it needs.

A `Provided` is computed when a task is declared; with overrides of a test, once more.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from treadle.core.errors import BadDependency
from treadle.core.injected import refuse_misplaced, signature_of
from treadle.resources.dependency import Dependency, Scope, name_of
from treadle.resources.lifespan import Lifespan

Kind = Literal["plain", "class", "async", "generator", "async generator", "lifespan"]
Overrides = Mapping[Callable[..., Any], Callable[..., Any]]


class Provided:
    """One value: its provider, and the values that the provider needs, by parameter.

    provider  as it was declared; `call` is the function that replaces it in a test, or the same
    """

    __slots__ = ("call", "kind", "needs", "provider", "scope")

    def __init__(self, provider: Any, call: Any, scope: Scope, needs: dict[str, Provided]) -> None:
        self.provider, self.call, self.scope, self.needs = provider, call, scope, needs
        self.kind: Kind = kind_of(call)

    def __repr__(self) -> str:
        return f"<provided by {self.name}>"

    @property
    def name(self) -> str:
        """The module and the name of the function."""
        return name_of(self.call)

    @property
    def key(self) -> tuple[Any, Scope]:
        """Equal for the same value: a run makes one value for each provider, a process too."""
        return self.provider, self.scope

    def problem(self, words: str) -> Exception:
        """The error of a provider that yields never or twice, or returns a coroutine."""
        if isinstance(self.call, Lifespan):
            return self.call.problem(words)
        return BadDependency(self.name, words)

    def checked(self, value: Any) -> Any:
        """The value of a plain provider. Raises BadDependency for a coroutine, which nothing would await."""
        if inspect.iscoroutine(value):
            value.close()
            raise self.problem("returned a coroutine: write it as `async def`")
        return value


class Planner:
    """Plans the dependencies of one function. Raises BadDependency."""

    def __init__(self, overrides: Overrides) -> None:
        self._overrides = overrides
        self._known: dict[tuple[Any, Scope], Provided] = {}
        self._path: list[Any] = []

    def of(self, function: Callable[..., Any]) -> dict[str, Provided]:
        """The values for the parameters of a function whose default is `depends(...)`."""
        return {needed.name: self.one(needed.default) for needed in _parameters(function) if _is_injected(needed)}

    def one(self, dependency: Dependency) -> Provided:
        provider = dependency.provider
        scope: Scope = "process" if isinstance(provider, Lifespan) else dependency.scope
        known = self._known.get((provider, scope))
        if known is not None:
            return known
        if provider in self._path:
            names = [name_of(step) for step in [*self._path[self._path.index(provider) :], provider]]
            raise BadDependency(names[0], f"depends on itself: {' -> '.join(names)}")
        call = self._overrides.get(provider, provider)
        self._path.append(provider)
        try:
            needs = {} if isinstance(call, Lifespan) else self._needs(call)
        finally:
            self._path.pop()
        provided = Provided(provider, call, scope, needs)
        for name, need in needs.items():
            if scope == "process" and need.scope == "run":
                raise BadDependency(
                    provided.name,
                    f"its value is one for the process, but {need.name} makes the parameter {name!r} for each run; "
                    f'give that scope="process", or this one scope="run"',
                )
        self._known[provided.key] = provided
        return provided

    def _needs(self, call: Callable[..., Any]) -> dict[str, Provided]:
        refuse_misplaced(name_of(call), _parameters(call), {})
        for parameter in _parameters(call):
            if _is_injected(parameter):
                if parameter.kind is parameter.POSITIONAL_ONLY:
                    raise BadDependency(name_of(call), f"the parameter {parameter.name!r} cannot be given by name")
            elif parameter.default is parameter.empty and parameter.kind not in (2, 4):  # `*args`, `**kwargs`
                raise BadDependency(
                    name_of(call), f"the parameter {parameter.name!r} has no value: give it a default, or depends(...)"
                )
        return self.of(call)


def in_order(needs: Mapping[str, Provided]) -> Iterator[Provided]:
    """These values and all that they need, each once, in the order in which they are made."""
    seen: set[tuple[Any, Scope]] = set()

    def walk(provided: Provided) -> Iterator[Provided]:
        if provided.key not in seen:
            seen.add(provided.key)
            for need in provided.needs.values():
                yield from walk(need)
            yield provided

    for need in needs.values():
        yield from walk(need)


def kind_of(call: Any) -> Kind:
    """How a provider is called. Raises BadDependency for a context manager of `contextlib`."""
    if isinstance(call, Lifespan):
        return "lifespan"
    plain = call
    while isinstance(plain, functools.partial):
        plain = plain.func
    if inspect.isclass(plain):
        return "class"
    if not inspect.isroutine(plain):
        plain = type(plain).__call__  # a callable object
    if inspect.isasyncgenfunction(plain):
        return "async generator"
    if inspect.isgeneratorfunction(plain):
        return "generator"
    if inspect.iscoroutinefunction(plain):
        return "async"
    code = getattr(plain, "__code__", None)
    if hasattr(plain, "__wrapped__") and code is not None and code.co_filename == contextlib.__file__:
        raise BadDependency(name_of(call), "is a context manager: give depends() the generator function without it")
    return "plain"


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(signature_of(function).parameters.values())
    except (TypeError, ValueError):  # classes of some extension modules have no signature
        return []


def _is_injected(parameter: inspect.Parameter) -> bool:
    return isinstance(parameter.default, Dependency)
