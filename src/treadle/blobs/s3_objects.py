"""Named objects in a bucket of S3-compatible storage."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, Self

from treadle.blobs.bucket import Bucket, read_url
from treadle.blobs.objects import ObjectEntry, digest_of
from treadle.core.errors import StorageUnavailable

LONGEST: Final = 60.0  # s for one text with all its tries: 16 MiB at 2.2 Mbit/s
AT_ONCE: Final = 8  # concurrent deletions: one after the other, 10,000 objects take ten minutes


class BucketObjects:
    """Objects under one prefix of a bucket. Any number of processes may share it."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    @classmethod
    def at(cls, url: str, environment: Mapping[str, str] = os.environ) -> Self:
        """The objects of `s3://bucket/prefix?endpoint=...&region=...`. Raises BadUrl."""
        return cls(Bucket(*read_url(url, environment)))

    def __str__(self) -> str:
        return str(self._bucket)

    def fresh(self) -> BucketObjects:
        return BucketObjects(self._bucket.fresh())

    async def close(self) -> None:
        await self._bucket.close()

    async def put(self, name: str, content: bytes) -> None:
        async with self._bounded():
            await self._bucket.put(name, io.BytesIO(content), len(content), digest_of(content))

    async def get(self, name: str) -> bytes | None:
        into = io.BytesIO()
        async with self._bounded():
            return None if await self._bucket.fetch(name, into) is None else into.getvalue()

    async def delete(self, names: Sequence[str], age: float = 0.0) -> None:
        turn = asyncio.Semaphore(AT_ONCE)

        async def one(name: str) -> None:
            async with turn:
                if age:
                    head = await self._bucket.head(name)
                    if head is None or head.age < age:
                        return
                await self._bucket.delete(name)

        await asyncio.gather(*map(one, names))

    @asynccontextmanager
    async def _bounded(self) -> AsyncIterator[None]:
        """Raise StorageUnavailable if the transfer of a blob takes too long: a server may send only a byte a minute."""
        try:
            async with asyncio.timeout(LONGEST):
                yield
        except TimeoutError:
            raise StorageUnavailable(f"blobs in {self}: no complete response within {LONGEST:.0f} s") from None

    async def page(self, after: str, limit: int) -> Sequence[ObjectEntry]:
        return [ObjectEntry(*entry) for entry in await self._bucket.list(after, limit)]
