"""Fixtures for pytest: `treadle_clock` and `treadle_testing`. Loaded by itself where Treadle is installed.

Without it every test suite would write these few lines. Nothing of Treadle is imported before a fixture is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from treadle.app import App
    from treadle.testing.app import Testing
    from treadle.testing.clock import HandClock


@pytest.fixture
def treadle_clock() -> HandClock:
    """A clock that stands still until the test moves it; `treadle_testing` runs by it."""
    from treadle.testing.clock import HandClock

    return HandClock()


@pytest.fixture
def treadle_testing(treadle_clock: HandClock) -> Callable[..., Testing]:
    """`async with treadle_testing(app) as t:` is `app.testing()` under `treadle_clock`, with the options of that."""

    def testing(app: App, **options: Any) -> Testing:
        return app.testing(treadle_clock, **options)

    return testing
