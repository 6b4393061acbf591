"""Errors of the resources of a process: lifespans and dependencies."""

from __future__ import annotations

from treadle.core.errors.base import CODE, TreadleError


class ResourceFailed(TreadleError):
    """A worker cannot open the resources of its app. The exception of the user's function is the cause.

    `resource` is the name of the function, `problem` what happened.
    """

    def __init__(self, resource: str, problem: str) -> None:
        self.resource, self.problem = resource, problem
        super().__init__(f"{self._what} {resource} {problem}")

    _what = "the resource"


class LifespanFailed(ResourceFailed):
    """The lifespan of an app raised, or yields never or twice."""

    _what = "the lifespan"


class DependencyFailed(ResourceFailed):
    """A dependency of the process raised before the worker began to claim."""

    _what = "the dependency"


class BadDependency(TreadleError, ValueError):
    """A provider that cannot be called, a cycle of providers, or one that yields never or twice.

    `provider` is the name of the function, `problem` what is wrong with it.
    """

    fails_as: str | None = CODE

    def __init__(self, provider: str, problem: str) -> None:
        self.provider, self.problem = provider, problem
        super().__init__(f"{provider}: {problem}")
