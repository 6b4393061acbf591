"""Signed links to requests for approval. Pure, except for the secret of the environment.

A link names the request, the person for whom it was made, and when it expires. Nothing is stored: the row of the
request is settled once, so a link works once.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final

import msgspec
from msgspec import Struct

from treadle.core.errors import UNREADABLE, BadOption

VARIABLE: Final = "TREADLE_SESSION_SECRET"
SHORTEST: Final = 32  # characters of a secret
PATH: Final = "/approve/"  # where a server answers these links
LONGEST: Final = 2_000  # characters of the part of a link behind PATH
LONGEST_NAME: Final = 100  # characters


class Link(Struct, frozen=True):
    """The content of a link. `expires`: seconds since 1970."""

    request: str
    to: str
    expires: float


_read = msgspec.json.Decoder(Link).decode


def secret_of(text: str) -> bytes:
    """The key for a secret that is given as text. Raises BadOption for one that is too short."""
    if len(text) < SHORTEST:
        raise BadOption(VARIABLE, f"expected at least {SHORTEST} random characters, found {len(text)}")
    return hashlib.sha256(text.encode()).digest()


def secret_in_environment() -> bytes | None:
    """The key for the secret of the environment; None: there is none. Raises BadOption."""
    text = os.environ.get(VARIABLE)
    return None if text is None else secret_of(text)


def named(to: str) -> str:
    """The name of a person. Raises BadOption."""
    if not 1 <= len(to) <= LONGEST_NAME or not to.isprintable():
        raise BadOption("to", f"expected a name of 1 to {LONGEST_NAME} printable characters, found {to!r:.120}")
    return to


def link_to(url: str, link: Link, secret: bytes) -> str:
    """The URL of this link at the server with this URL."""
    body = msgspec.json.encode(link)
    return f"{url.rstrip('/')}{PATH}{_text(body)}.{_text(_signature(body, secret))}"


def read_link(text: str, secret: bytes) -> Link | None:
    """The link with this text behind PATH; None: another secret has signed it, or none. It may have expired."""
    body, _, signature = text.partition(".")
    if len(text) > LONGEST:
        return None
    try:
        content, sent = _bytes(body), _bytes(signature)
    except (ValueError, binascii.Error):
        return None
    if not hmac.compare_digest(sent, _signature(content, secret)):
        return None
    try:
        return _read(content)
    except UNREADABLE:  # another version has signed it
        return None


def _signature(body: bytes, secret: bytes) -> bytes:
    # A key of its own: no text that is signed as a session is valid as a link.
    return hmac.digest(hmac.digest(secret, b"approval link", "sha256"), body, "sha256")


def _text(content: bytes) -> str:
    return urlsafe_b64encode(content).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
