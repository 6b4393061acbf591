"""Limits the number of values in a large body before it is decoded, because decoding blocks the whole process.

A decoder cannot be interrupted, and does not let other threads run. It takes 0.1 us for a number and up to 1 us for an
object, so 30 MB of "[],[],..." took 16 s and 1.7 GB. Counting arrays, objects and values yields to the event loop.
"""

from __future__ import annotations

from typing import Final

from treadle.serialization import Content, beyond
from treadle.server.errors import Refused
from treadle.server.time_slices import TimeSlices

SMALL: Final = 64 * 2**10  # bytes that are decoded without counting: 22,000 empty arrays take 15 ms
CONTAINERS: Final = 100_000  # arrays and objects in a body: up to 1 us each
ROWS: Final = 300_000  # arrays and objects in a body of rows of known types: 100,000 jobs with three each
VALUES: Final = 1_000_000


async def weigh(content: Content, most: int = CONTAINERS) -> None:
    """Raise Refused (413) for a body of more than VALUES values, or more than `most` arrays and objects."""
    if len(content) <= SMALL:
        return
    if (bound := await beyond(content, most, VALUES, TimeSlices().step)) is not None:
        message = f"the body has more than {bound[0]:,} {bound[1]}: send it in parts"
        raise Refused(413, "too_many_values", message, {"Connection": "close"})
