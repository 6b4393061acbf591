"""Blobs as objects of S3-compatible storage: one object each, named by its address, verified on every read.

Without it servers on several machines would need a shared disk. Bytes rest in a temporary file here while their
address is worked out, and while they are checked: the name is known only when the last byte has come, and no byte may
be handed out before the last one was checked.
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

from treadle.blobs.address import address_of
from treadle.blobs.bucket import Bucket, read_url
from treadle.blobs.directory import MOST, File, append, refusal
from treadle.blobs.store import BadAddress, Blob, Corrupt, NoBlob, TooBig

log = logging.getLogger("treadle")

LARGEST: Final = 5 * 2**30  # bytes: what S3 takes in one piece


class S3Blobs:
    """Blobs in a bucket. Any number of servers may share it.

    limit  bytes of the largest blob, 5 GiB at most
    sha1   blobs put from now on are found by their SHA-1 as well
    """

    def __init__(self, bucket: Bucket, limit: int = MOST, sha1: bool = False) -> None:
        self._bucket, self._limit, self._sha1 = bucket, min(limit, LARGEST), sha1

    @classmethod
    def at(cls, url: str, limit: int = MOST, sha1: bool = False, environment: Mapping[str, str] = os.environ) -> Self:
        """The store of `s3://bucket/prefix?endpoint=...&region=...`; who asks is said by the environment, as
        AWS_ACCESS_KEY_ID and so on. Raises BadUrl."""
        return cls(Bucket(*read_url(url, environment)), limit, sha1)

    async def close(self) -> None:
        await self._bucket.close()

    @staticmethod
    def name(address: str) -> str:
        """The object of a blob, under the prefix."""
        return f"{address[:2]}/{address}"

    async def put(self, content: AsyncIterator[bytes]) -> tuple[str, bool]:
        sha, mark, size = hashlib.sha256(), hashlib.md5(usedforsecurity=False), 0
        old = hashlib.sha1(usedforsecurity=False)
        try:
            with await asyncio.to_thread(_spool) as spool:
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
                # The mark of an object that was put in one piece is its MD5; where a server makes marks otherwise, or
                # the object is spoiled, it is put again.
                is_new = known is None or (known.size, known.etag) != (size, f'"{mark.hexdigest()}"')
                if is_new:
                    await self._bucket.put(self.name(address), spool, size, address)
        except OSError as error:
            raise refusal(error, tempfile.gettempdir()) from error
        if self._sha1:
            text = address.encode()
            await self._bucket.put(
                f"sha1/{old.hexdigest()}", io.BytesIO(text), len(text), hashlib.sha256(text).hexdigest()
            )
        return address, is_new

    async def find(self, sha1: str) -> str | None:
        if not self._sha1:
            raise BadAddress("this store does not look blobs up by their SHA-1")
        found = io.BytesIO()
        came = await self._bucket.fetch(f"sha1/{sha1}", found)
        return None if came is None else address_of(found.getvalue().decode())

    async def size(self, address: str) -> int | None:
        found = await self._bucket.head(self.name(address))
        return None if found is None else found.size

    @asynccontextmanager
    async def read(self, address: str) -> AsyncIterator[Blob]:
        """Brought here as a whole, verified, then handed out."""
        try:
            spool = await asyncio.to_thread(_spool)
        except OSError as error:
            raise refusal(error, tempfile.gettempdir()) from error
        with spool:
            try:
                came = await self._bucket.fetch(self.name(address), spool)
            except OSError as error:
                raise refusal(error, tempfile.gettempdir()) from error
            if came is None:
                raise NoBlob(f"there is no blob {address}")
            digest, etag = came
            if digest != address:
                await self._set_aside(address, digest, etag)
                raise Corrupt(f"the bytes of {address} are spoiled; they were moved to {self._bucket}quarantine/")
            yield File(spool)

    async def _set_aside(self, address: str, found: str, etag: str) -> None:
        log.error("%s%s holds other bytes than its name says (sha256 %s)", self._bucket, self.name(address), found)
        aside = f"quarantine/{address}.{os.urandom(4).hex()}"
        if await self._bucket.copy(self.name(address), aside, etag):
            await self._bucket.delete(self.name(address), etag)


def _spool() -> IO[bytes]:
    """A file without a name, gone with the program."""
    return tempfile.TemporaryFile(buffering=0)
