"""Named objects in a bucket of S3-compatible storage."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from typing import Self

from treadle.blobs.bucket import Bucket, read_url
from treadle.blobs.objects import Entry, digest_of


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
        await self._bucket.put(name, io.BytesIO(content), len(content), digest_of(content))

    async def get(self, name: str) -> bytes | None:
        into = io.BytesIO()
        return None if await self._bucket.fetch(name, into) is None else into.getvalue()

    async def delete(self, names: Sequence[str]) -> None:
        for name in names:
            await self._bucket.delete(name)

    async def page(self, after: str, limit: int) -> Sequence[Entry]:
        return [Entry(*each) for each in await self._bucket.list(after, limit)]
