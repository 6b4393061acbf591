"""Stores blobs as objects of S3-compatible storage, one per address, and verifies them on every read.

Each blob passes through a local temporary file: its address is known only after the last byte was written, and no byte
may be returned before all were verified.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import logging
import os
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import IO, Final, Self

from treadle.blobs.bucket import Bucket, read_url
from treadle.blobs.directory import MOST, File, append, refusals
from treadle.blobs.store import BadAddress, Blob, Corrupt, NoBlob, TooBig, address_of

log = logging.getLogger("treadle")

LARGEST: Final = 5 * 2**30  # bytes that S3 accepts in one request


class S3Blobs:
    """Blobs in a bucket. Any number of servers may share it.

    limit  bytes of the largest blob, 5 GiB at most
    sha1   whether new blobs can also be found by their SHA-1
    """

    def __init__(self, bucket: Bucket, limit: int = MOST, sha1: bool = False) -> None:
        self._bucket, self._limit, self._sha1 = bucket, min(limit, LARGEST), sha1

    @classmethod
    def at(cls, url: str, limit: int = MOST, sha1: bool = False, environment: Mapping[str, str] = os.environ) -> Self:
        """The store of `s3://bucket/prefix?endpoint=...&region=...`, with credentials from the environment
        (AWS_ACCESS_KEY_ID and others), otherwise from botocore's chain if it is installed. Raises BadUrl."""
        return cls(Bucket(*read_url(url, environment)), limit, sha1)

    async def close(self) -> None:
        await self._bucket.close()

    @staticmethod
    def name(address: str) -> str:
        """The name of a blob's object under the prefix."""
        return f"{address[:2]}/{address}"

    async def put(self, content: AsyncIterator[bytes]) -> tuple[str, bool]:
        sha, mark, size = hashlib.sha256(), hashlib.md5(usedforsecurity=False), 0
        old = hashlib.sha1(usedforsecurity=False)
        with refusals(tempfile.gettempdir()), await asyncio.to_thread(_spool) as spool:
            async for piece in content:
                size += len(piece)
                if size > self._limit:
                    raise TooBig("the blob", size, self._limit)
                mark.update(piece)
                if self._sha1:
                    old.update(piece)
                await asyncio.to_thread(append, spool, piece, sha)
            address = sha.hexdigest()
            known = await self._bucket.head(self.name(address))
            # The ETag of an object that was put in one request is its MD5. If it differs, because the object is
            # corrupt or the server computes ETags differently, the object is put again.
            is_new = known is None or (known.size, known.etag) != (size, f'"{mark.hexdigest()}"')
            if is_new:
                await self._bucket.put(self.name(address), spool, size, address)
        if self._sha1:
            text = address.encode()
            await self._bucket.put(
                f"sha1/{old.hexdigest()}", io.BytesIO(text), len(text), hashlib.sha256(text).hexdigest()
            )
        return address, is_new

    async def find(self, sha1: str) -> str | None:
        if not self._sha1:
            raise BadAddress("this store keeps no index of SHA-1: ask for the blob by its SHA-256")
        into = io.BytesIO()
        came = await self._bucket.fetch(f"sha1/{sha1}", into)
        return None if came is None else address_of(into.getvalue().decode())

    async def size(self, address: str) -> int | None:
        head = await self._bucket.head(self.name(address))
        return None if head is None else head.size

    @asynccontextmanager
    async def read(self, address: str) -> AsyncIterator[Blob]:
        """Download and verify the whole blob, then read from the local file."""
        with refusals(tempfile.gettempdir()):
            spool = await asyncio.to_thread(_spool)
        with spool:
            with refusals(tempfile.gettempdir()):
                came = await self._bucket.fetch(self.name(address), spool)
            if came is None:
                raise NoBlob(f"there is no blob {address}")
            digest, etag = came
            if digest != address:
                await self._set_aside(address, digest, etag)
                raise Corrupt(f"the object of {address} is corrupt; it was moved to {self._bucket}quarantine/")
            yield File(spool)

    async def _set_aside(self, address: str, digest: str, etag: str) -> None:
        log.error("%s%s holds other bytes than its name says (sha256 %s)", self._bucket, self.name(address), digest)
        quarantined = f"quarantine/{address}.{os.urandom(4).hex()}"
        if await self._bucket.copy(self.name(address), quarantined, etag):
            await self._bucket.delete(self.name(address), etag)


def _spool() -> IO[bytes]:
    """A temporary file without a name, deleted when it is closed."""
    return tempfile.TemporaryFile(buffering=0)
