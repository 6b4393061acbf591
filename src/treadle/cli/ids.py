"""Reads typed job ids: Treadle's own, or the 26 characters of a `jobId` of the delayed protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from treadle.compat.delayed.ids import id_of

if TYPE_CHECKING:
    from treadle.app import App


async def stored_ids(app: App, typed: Sequence[str]) -> list[str]:
    """The stored ids. An id that exists as typed wins, because a program may choose one that looks like a `jobId`."""
    meant = [id_of(text) for text in typed]
    if not any(meant):
        return list(typed)
    rows = await app.storage.get(typed)
    return [text if row is not None else other or text for text, row, other in zip(typed, rows, meant, strict=True)]
