"""Encrypts the texts of rows: AES-SIV (RFC 5297), which binds each text to its job and its field.

The encryption is deterministic: the same text of the same field of the same job has one ciphertext. So a repeated
enqueue or settle is recognised as a repetition, by a storage that compares texts and knows no key.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import secrets
from collections.abc import Mapping
from typing import Any, Final, Self

from treadle.core.errors import BadOption
from treadle.core.stored_text import Sealed, as_text

LENGTH: Final = 64  # bytes of a key: 32 to authenticate, 32 to encrypt
NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
MADE: Final = b"\x01"  # before each text: the version of the form; AES-SIV also refuses empty texts
VARIABLE: Final = "TREADLE_KEYS"


class UnknownKey(LookupError):
    """A text was encrypted with a key that is not among these."""


class Keys:
    """The keys that encrypt arguments, results and errors: `Keys("2026b:BASE64", "2026a:BASE64")`.

    The first key encrypts; every key decrypts. A key is an id of 1 to 64 letters, digits and `._-`, a colon, and the
    base64 of 64 bytes; `Keys.make("2026b")` makes one. Needs the extra `treadle[encryption]`. Raises BadOption.
    """

    def __init__(self, *keys: str) -> None:
        if not keys:
            raise BadOption("keys", "expected at least one key")
        ciphers: dict[str, Any] = {}
        for number, key in enumerate(keys):
            name, cipher = _read(key, number)
            if name in ciphers:
                raise BadOption("keys", f"two keys have the id {name!r}")
            ciphers[name] = cipher
        self._ciphers: Mapping[str, Any] = ciphers
        self.newest = next(iter(ciphers))

    @staticmethod
    def make(name: str) -> str:
        """A new random key with this id. Keep it where you keep other secrets."""
        if not NAME.fullmatch(name):
            raise BadOption("keys", f"expected an id of 1 to 64 letters, digits and ._-, found {name[:80]!r}")
        return f"{name}:{base64.b64encode(secrets.token_bytes(LENGTH)).decode()}"

    @classmethod
    def from_environment(cls, variable: str = VARIABLE) -> Self:
        """The keys of this variable, separated by spaces or commas, the newest first. Raises BadOption."""
        keys = re.split(r"[\s,]+", os.environ.get(variable, "").strip())
        if keys == [""]:
            raise BadOption("keys", f"the environment has no variable {variable}")
        return cls(*keys)

    @property
    def names(self) -> tuple[str, ...]:
        """The ids of the keys, the newest first."""
        return tuple(self._ciphers)

    def __repr__(self) -> str:
        return f"<Keys {', '.join(self._ciphers)}>"

    def seal(self, text: str, job: str, field: str) -> str:
        """The encrypted form of a text of this field of this job. Raises UnicodeEncodeError."""
        box = self._ciphers[self.newest].encrypt(MADE + text.encode(), _bound(job, field))
        return as_text(Sealed(self.newest, base64.b64encode(box).decode()))

    def open(self, closed: Sealed, job: str, field: str) -> str | None:
        """The text; None if it was changed, or encrypted for another job or field. Raises UnknownKey."""
        from cryptography.exceptions import InvalidTag

        cipher = self._ciphers.get(closed.key)
        if cipher is None:
            raise UnknownKey(closed.key)
        try:
            plain: bytes = cipher.decrypt(base64.b64decode(closed.text, validate=True), _bound(job, field))
        except (InvalidTag, ValueError):
            return None
        return plain[1:].decode() if plain[:1] == MADE else None


def _bound(job: str, field: str) -> list[bytes]:
    return [b"treadle", job.encode("utf-8", "surrogatepass"), field.encode("utf-8", "surrogatepass")]


def _read(key: object, number: int) -> tuple[str, Any]:
    """The id and the cipher of a key. No message shows the key."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESSIV
    except ImportError as error:
        raise BadOption("keys", f"encryption needs the extra: pip install 'treadle[encryption]' ({error})") from None
    name, colon, secret = key.partition(":") if isinstance(key, str) else ("", "", "")
    advice = "ID:BASE64 with an id of 1 to 64 letters, digits and ._-, and 64 bytes as base64; Keys.make(ID) makes one"
    if not colon or not NAME.fullmatch(name):
        raise BadOption("keys", f"key number {number + 1}: expected {advice}")
    try:
        raw = base64.b64decode(secret, validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != LENGTH:
        raise BadOption("keys", f"the key {name!r}: expected {advice}")
    return name, AESSIV(raw)
