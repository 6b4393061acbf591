"""The entries of a stream as readers get them: chunks, and resets that void earlier ones."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class Chunk(Struct, frozen=True):
    """A value that a job has written to one of its streams.

    offset  its number among the entries of the stream, from 0 on; a reader continues behind it with `start=offset + 1`
    step    the key of the step that has written it; "": the function of a job that takes no steps
    """

    offset: int
    value: Any
    step: str = ""


class Reset(Struct, frozen=True):
    """A step runs again: its chunks from the offset `to` on are void. Chunks of other steps stay."""

    offset: int
    to: int
    step: str = ""
