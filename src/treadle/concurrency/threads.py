"""The threads that a loop calls plain functions in, as their callers see them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

Answer = tuple[Any, BaseException | None]


class Threads(Protocol):
    """Calls plain functions in threads. The future's result is (value, None) or (None, exception); it never raises."""

    def run(self, call: Callable[[], Any]) -> asyncio.Future[Answer]: ...
