"""Converts ids to the `jobId` of the delayed protocol and back: 26 characters, the 128 bits in Crockford's base 32."""

from __future__ import annotations

import re
import uuid
from typing import Final

ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32, in lower case
NAME: Final = re.compile(f"[{ALPHABET}{ALPHABET.upper()}]{{26}}")


def shown(id: str) -> str:
    """The `jobId` of an id: 26 characters that sort as the id does. Raises ValueError for an id that is not a UUID."""
    number = uuid.UUID(id).int
    return "".join(ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))


def id_of(text: str) -> str | None:
    """The id of a `jobId`, in upper or lower case; None for any other text."""
    if not NAME.fullmatch(text):
        return None
    number = 0
    for letter in text.lower():
        number = number << 5 | ALPHABET.index(letter)
    return None if number >> 128 else str(uuid.UUID(int=number))


def name_of(id: str) -> str:
    """The `jobId` of an id, or the id itself if it is not a UUID: a program may have chosen it."""
    try:
        return shown(id)
    except ValueError:
        return id
