"""Reads responses of a server within limits on their size, so that a hostile server cannot exhaust a client's memory.

Decoding can turn three bytes of a response into 400 bytes of memory, so values are counted before they are decoded.
"""

from __future__ import annotations

import asyncio
import functools
from typing import Final

import aiohttp

from treadle.core.errors import AnswerTooLarge
from treadle.serialization.json_counts import beyond

ANSWER: Final = 256 * 2**20  # bytes of a response with rows, unless ?max_answer= sets another limit
PLAIN: Final = 16 * 2**20  # bytes of any other response; the results of 100,000 outcomes take 4 MB
SMALL: Final = 2**20  # bytes; a response up to this size is decoded without counting its values
CONTAINERS: Final = 1_000_000  # arrays and objects: 10,000 rows with 100 each
VALUES: Final = 10_000_000
WITH_ROWS: Final = frozenset(
    {"enqueue", "claim", "settle_claim", "get", "find", "stats", "glance", "limits", "read_metrics"}
)
ADVICE: Final = "request less at once, or raise ?max_answer= in the URL of the storage"


async def read(response: aiohttp.ClientResponse, place: str, most: int) -> bytearray:
    """The whole response. Raises AnswerTooLarge beyond `most` bytes, or at once if its declared length is larger."""
    if (response.content_length or 0) > most:
        raise AnswerTooLarge(place, most, advice=ADVICE)
    content = bytearray()
    try:
        async for piece in response.content.iter_any():
            content += piece
            if len(content) > most:
                raise AnswerTooLarge(place, most, advice=ADVICE)
    except RuntimeError as error:  # aiohttp: this process closed the connection after the headers had come
        raise aiohttp.ServerDisconnectedError(str(error)) from error
    return content


async def weigh(content: bytearray, place: str) -> None:
    """Raises AnswerTooLarge for a response with more values than the limits allow."""
    if len(content) <= SMALL:
        return
    bound = await beyond(content, CONTAINERS, VALUES, functools.partial(asyncio.sleep, 0))
    if bound is not None:
        raise AnswerTooLarge(place, *bound, ADVICE)
