"""Records the acts of operator commands in the audit log, as user@host."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treadle.admin.audit import Receipt
    from treadle.app import App


def audited(app: App, act: str, target: str = "", details: str | None = None) -> AbstractAsyncContextManager[Receipt]:
    """Record the act in the block."""
    return app.audit.record(act, target, filter=details, source="cli")


def words_of(filters: Mapping[str, Any]) -> str:
    """The filter options of a command in words."""
    from treadle.admin import query_of, text_of
    from treadle.admin import words_of as in_words

    return in_words(query_of(filters), text_of(filters))
