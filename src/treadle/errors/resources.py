"""Errors of the resources of a process: lifespans and dependencies."""

from __future__ import annotations

from treadle.errors.base import TreadleError


class LifespanFailed(TreadleError):
    """The lifespan of an app raised, or does not do what a lifespan must do. Its own exception is the cause.

    `lifespan` is the name of its function, `problem` what happened.
    """

    def __init__(self, lifespan: str, problem: str) -> None:
        self.lifespan, self.problem = lifespan, problem
        super().__init__(f"the lifespan {lifespan} {problem}")
