"""Calls into the SDK of Sentry that fail no job: what it raises is logged once.

The SDK parses headers that a visitor of the user's site may have sent, and raises for some of them, such as a sample
rate of `inf`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

log = logging.getLogger("treadle")

T = TypeVar("T")


class Harmless:
    """Runs calls into the SDK for one app."""

    def __init__(self) -> None:
        self._failed = False

    def call(self, what: str, call: Callable[[], T]) -> T | None:
        """The value of a call; None if it raises."""
        try:
            return call()
        except Exception:
            self.failed(what)
            return None

    @contextmanager
    def block(self, what: str, make: Callable[[], AbstractContextManager[object]]) -> Iterator[None]:
        """The block inside the context manager that `make` returns; without it if that cannot be entered. Only the
        block's own exceptions are raised."""
        manager = self.call(what, make)
        if manager is None or self.call(what, lambda: (manager.__enter__(),)) is None:
            yield
            return
        try:
            yield
        except BaseException as error:
            self._leave(what, manager, error)
            raise
        self._leave(what, manager, None)

    def _leave(self, what: str, manager: AbstractContextManager[object], error: BaseException | None) -> None:
        try:
            if error is None:
                manager.__exit__(None, None, None)
            else:
                manager.__exit__(type(error), error, error.__traceback__)
        except BaseException as broken:
            if broken is not error:
                self.failed(what)

    def failed(self, what: str) -> None:
        """Log the exception that is handled now, unless one was logged before."""
        if not self._failed:
            text = "Sentry failed (%s); jobs are not affected, and further failures are not logged"
            log.error(text, what, exc_info=True)  # noqa: LOG014 (its callers handle an exception)
        self._failed = True
