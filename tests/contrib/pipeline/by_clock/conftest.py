"""An app on each storage, with a clock that only moves by hand."""

from tests.fixtures import app, clock, spy, storage, told

__all__ = ["app", "clock", "spy", "storage", "told"]
