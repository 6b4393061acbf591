"""Flow control by a clock that only moves by hand, on every storage."""

from tests.engine.fixtures import app, clock, spy, storage, told

__all__ = ["app", "clock", "spy", "storage", "told"]
