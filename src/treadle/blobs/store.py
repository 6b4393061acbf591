"""The interface of a blob store, the errors that it raises, and the addresses of blobs."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

from treadle.core.errors import TooLarge, TreadleError

HEX: Final = re.compile(r"[0-9a-fA-F]{64}")  # SHA-256


class BadAddress(TreadleError, ValueError):
    """The text is not an address. Expected 64 hex digits, or sha256-<base64>."""


class NoBlob(TreadleError, LookupError):
    """There is no blob with this address."""


class Corrupt(TreadleError):
    """The stored bytes no longer match their address. They were moved to quarantine, and none were returned."""


class TooBig(TooLarge):
    """The blob exceeds the size limit of the store. Nothing was stored."""


class Blob(Protocol):
    """Verified bytes, to be read once, in pieces."""

    size: int

    def __aiter__(self) -> AsyncIterator[bytes]: ...


class Blobs(Protocol):
    """A store of blobs. Addresses are 64 lower-case hex digits. Raises StorageFull, StorageUnavailable."""

    async def put(self, content: AsyncIterator[bytes]) -> tuple[str, bool]:
        """Store the bytes durably -> their address, and whether they are new.

        Raises TooBig. If `content` raises, nothing is stored.
        """
        ...

    async def size(self, address: str) -> int | None:
        """The size of a blob in bytes; None if it does not exist. Does not verify it."""
        ...

    async def find(self, sha1: str) -> str | None:
        """The address of the blob with this SHA-1 (40 lower-case hex digits); None if there is none.

        Raises BadAddress if the store has no index by SHA-1.
        """
        ...

    async def close(self) -> None:
        """Close connections. The store can still be used; it reconnects."""
        ...

    def read(self, address: str) -> AbstractAsyncContextManager[Blob]:
        """The bytes of a blob, verified before the first one is returned. Raises NoBlob, Corrupt."""
        ...


def address_of(text: str) -> str:
    """Convert any form of an address to 64 lower-case hex digits. Raises BadAddress."""
    if HEX.fullmatch(text):
        return text.lower()
    if text.startswith("sha256-"):
        try:
            digest = base64.b64decode(text.removeprefix("sha256-").replace("-", "+").replace("_", "/"), validate=True)
        except (binascii.Error, ValueError):
            digest = b""
        if len(digest) == 32:
            return digest.hex()
    shown = text if len(text) <= 80 else text[:77] + "..."
    raise BadAddress(f"expected 64 hex digits or sha256-<base64>, found {shown!r}")


def sri(address: str) -> str:
    """Convert an address to the form of subresource integrity."""
    return "sha256-" + base64.b64encode(bytes.fromhex(address)).decode()
