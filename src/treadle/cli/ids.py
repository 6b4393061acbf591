"""Reads typed job ids: Treadle's own, or the 26 characters of a `jobId` of the delayed protocol. Suggests one for an id
that is typed in part, or wrongly."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, TypeVar

from treadle.cli.output import FAILED, Stop
from treadle.cli.protocols import all_protocols

if TYPE_CHECKING:
    from treadle.app import App

T = TypeVar("T")
LEAST: Final = 4  # characters that a person must type before ids are suggested
NEWEST: Final = 500  # newest jobs whose ids are compared with the typed one
LOOKED: Final = 10_000  # newest jobs that are searched for ids that begin with the typed text
SUGGESTED: Final = 3


async def stored_ids(app: App, typed: Sequence[str]) -> list[str]:
    """The stored ids. An id that exists as typed wins, because a program may choose one that looks like a `jobId`."""
    meant = [next(filter(None, (guest.id_of(text) for guest in all_protocols())), None) for text in typed]
    if not any(meant):
        return list(typed)
    rows = await app.storage.get(typed)
    return [text if row is not None else other or text for text, row, other in zip(typed, rows, meant, strict=True)]


async def hinting(app: App, typed: str, look: Awaitable[T]) -> T:
    """The result of a look at one job. Raises Stop, with the ids that may be meant, if the id is unknown."""
    from treadle.core.errors import StorageError, UnknownJob

    try:
        return await look
    except UnknownJob as error:
        try:
            near = await _near(app, typed)
        except StorageError:
            near = []
        if not near:
            raise
        raise Stop(FAILED, f"{error}; did you mean {' or '.join(near)}?") from None


async def _near(app: App, typed: str) -> list[str]:
    """The ids that begin with the typed text, else the most similar one of the newest jobs."""
    if len(typed) < LEAST:
        return []
    matches = await app.jobs.list(search=typed, scan=LOOKED, limit=100)
    begun = [row.id for row in matches.records if row.id.startswith(typed)]
    if begun:
        return begun[:SUGGESTED]
    newest = await app.jobs.list(limit=NEWEST)
    return get_close_matches(typed, [row.id for row in newest.records], n=1, cutoff=0.85)
