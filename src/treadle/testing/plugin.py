"""Pytest fixtures: `treadle_clock` and `treadle_testing`. Pytest loads this plugin wherever Treadle is installed.

Nothing of Treadle is imported before a test uses a fixture.
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
    """A clock that moves only when the test advances it. `treadle_testing` uses it."""
    from treadle.testing.clock import HandClock

    return HandClock()


@pytest.fixture
def treadle_testing(treadle_clock: HandClock) -> Callable[..., Testing]:
    """`async with treadle_testing(app) as t:` is `app.testing()` under `treadle_clock`, with the same options."""

    def testing(app: App, **options: Any) -> Testing:
        return app.testing(treadle_clock, **options)

    return testing
