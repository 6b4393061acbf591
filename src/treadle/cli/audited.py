"""Records the acts of operator commands in the audit log, as user@host."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.admin.audit import Receipt
    from treadle.app import App


def audited(app: App, act: str, target: str = "", details: str | None = None) -> AbstractAsyncContextManager[Receipt]:
    """Record the act in the block."""
    return app.audit.record(act, target, filter=details, source="cli")
