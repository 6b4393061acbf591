"""Counts the rows that scripts read, as the server reports their commands."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import redis.asyncio

from tests.servers import valkey


@contextlib.asynccontextmanager
async def reads_of(found: list[int]) -> AsyncIterator[None]:
    """Append the number of ids in each HMGET of a script to `found`."""
    client = redis.asyncio.Redis.from_url(valkey.url())
    async with client.monitor() as monitor:
        await client.get("begin")
        yield
        await client.get("end")
        async for each in monitor.listen():
            words = each["command"].split(" ")
            if words[:2] == ["GET", "end"]:
                break
            if each["client_type"] == "lua" and words[0] == "HMGET":
                found.append(len(words) - 2)
    await client.aclose()
