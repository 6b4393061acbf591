"""Steps, sleeps and waits that were called and have not begun: a forgotten `await` must not pass as success."""

from __future__ import annotations

import inspect
from collections.abc import Coroutine
from typing import Any

from treadle.core.errors import BadStep


class Unawaited(dict[str, Coroutine[Any, Any, Any]]):
    """Those of one run, by their keys. One that begins, or is closed because something else does its work, is removed
    with `pop`."""

    def add(self, key: str, work: Coroutine[Any, Any, Any]) -> Coroutine[Any, Any, Any]:
        """The coroutine, which does the work of this step."""
        self[key] = work
        return work

    def close(self) -> None:
        """The run is over: close those that have not begun."""
        for coroutine in self.values():
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                coroutine.close()

    def forgotten(self) -> BadStep | None:
        """The error for the first one, after the function has returned. One whose task was cancelled is closed."""
        error = None
        for key, coroutine in self.items():
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                coroutine.close()
                error = error or BadStep(key, "was never awaited, so it has not begun; write `await` before it")
        return error
