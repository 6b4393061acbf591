"""What a store of blobs offers, whatever it is made of, and the errors it raises.

Without it the server and the runner would know whether blobs are files or objects in a bucket.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from treadle.errors import TooLarge, TreadleError


class BadAddress(TreadleError, ValueError):
    """An address that cannot be one: expected 64 hex digits, or sha256-<base64>."""


class NoBlob(TreadleError, LookupError):
    """There are no bytes under this address."""


class Corrupt(TreadleError):
    """The stored bytes are not those of the address any more. They were set aside; nothing of them was handed out."""


class TooBig(TooLarge):
    """The blob is beyond the size limit of the store; nothing was kept."""


class Blob(Protocol):
    """Verified bytes, to be read once, in pieces."""

    size: int

    def __aiter__(self) -> AsyncIterator[bytes]: ...


class Blobs(Protocol):
    """A store of blobs. Addresses are 64 lower-case hex digits. Raises StorageFull, StorageUnavailable."""

    async def put(self, content: AsyncIterator[bytes]) -> tuple[str, bool]:
        """Keep the bytes -> their address, and whether they are new here. Durable when it returns.

        Raises TooBig; whatever `content` raises leaves nothing behind.
        """
        ...

    async def size(self, address: str) -> int | None:
        """Bytes under the address; None: there are none. Does not verify."""
        ...

    async def find(self, sha1: str) -> str | None:
        """The address of the bytes with this SHA-1 (40 lower-case hex digits), where the store keeps such look-ups;
        None: there are none. Raises BadAddress where it does not."""
        ...

    async def close(self) -> None:
        """Let go of connections; the store may be used again all the same."""
        ...

    def read(self, address: str) -> AbstractAsyncContextManager[Blob]:
        """The bytes, verified before the first of them is handed out. Raises NoBlob, Corrupt."""
        ...
