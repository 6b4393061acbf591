"""An app on each storage, with the storage's own clock, as in tests/workflow."""

from tests.workflow.conftest import app, storage, told

__all__ = ["app", "storage", "told"]
