"""An app on each storage by its own clock, as in tests/workflow."""

from tests.workflow.conftest import app, storage, told

__all__ = ["app", "storage", "told"]
