"""The answer of a server as bytes that end: a hostile one would fill the memory of its clients.

A decoder makes up to 400 bytes of memory of three bytes of an answer, so values are counted before they are made.
"""

from __future__ import annotations

import asyncio
import functools
from typing import Final

import aiohttp

from treadle.errors import AnswerTooLarge
from treadle.serialization.json_counts import beyond

ANSWER: Final = 256 * 2**20  # bytes of an answer that brings rows, unless ?max_answer= says otherwise
PLAIN: Final = 16 * 2**20  # bytes of any other: 100,000 outcomes have 4 MB
SMALL: Final = 2**20  # bytes that are decoded whatever they hold
CONTAINERS: Final = 1_000_000  # arrays and objects: 10,000 rows with 100 each
VALUES: Final = 10_000_000
WITH_ROWS: Final = frozenset({"enqueue", "claim", "settle_claim", "get", "find", "stats", "limits"})
ADVICE: Final = "ask for less at once, or raise ?max_answer= of the storage's URL"


async def read(response: aiohttp.ClientResponse, place: str, most: int) -> bytearray:
    """The whole of it. Raises AnswerTooLarge beyond `most` bytes, or as soon as it says that it has more."""
    if (response.content_length or 0) > most:
        raise AnswerTooLarge(place, most, advice=ADVICE)
    content = bytearray()
    async for piece in response.content.iter_any():
        content += piece
        if len(content) > most:
            raise AnswerTooLarge(place, most, advice=ADVICE)
    return content


async def weigh(content: bytearray, place: str) -> None:
    """Raises AnswerTooLarge for an answer of more values than are made."""
    if len(content) <= SMALL:
        return
    bound = await beyond(content, CONTAINERS, VALUES, functools.partial(asyncio.sleep, 0))
    if bound is not None:
        raise AnswerTooLarge(place, *bound, ADVICE)
