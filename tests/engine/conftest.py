"""The engine by a clock that only moves by hand, on every storage."""

from tests.engine.fixtures import app, clock, spy, storage, swept, told

__all__ = ["app", "clock", "spy", "storage", "swept", "told"]
