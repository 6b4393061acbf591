"""The 26 characters by which the delayed face's protocol names a job: the id's 128 bits in Crockford's base 32.

Without it whoever delivers a job would name it otherwise than whoever sent it. It needs no server.
"""

from __future__ import annotations

import re
import uuid
from typing import Final

ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32, in lower case
NAME: Final = re.compile(f"[{ALPHABET}{ALPHABET.upper()}]{{26}}")


def shown(id: str) -> str:
    """An id as this protocol writes it: 26 characters, which sort as it does. Raises ValueError if it is no UUID."""
    number = uuid.UUID(id).int
    return "".join(ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))


def id_of(text: str) -> str | None:
    """The id behind the 26 characters, in either case; None if it is none."""
    if not NAME.fullmatch(text):
        return None
    number = 0
    for letter in text.lower():
        number = number << 5 | ALPHABET.index(letter)
    return None if number >> 128 else str(uuid.UUID(int=number))


def name_of(id: str) -> str:
    """As shown, or the id itself: a program may have sent the job under an id of its own."""
    try:
        return shown(id)
    except ValueError:
        return id
