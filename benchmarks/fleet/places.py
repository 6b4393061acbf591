"""The storages of `bench fleet`, emptied for every cell, with the durability that the guides recommend."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from benchmarks.harness.places import Places
from benchmarks.over_http import serving


class Place(NamedTuple):
    """A storage: a place of the harness, the end of its URL, and whether a server is in front of it."""

    base: str
    query: str = ""
    served: bool = False


STORAGES: Final = {
    "sqlite": Place("sqlite-normal", "?synchronous=normal"),
    "postgres": Place("postgres"),
    "valkey": Place("redis-aof"),
    "valkey-shards": Place("redis-aof", "?shards=4"),
    "postgres-server": Place("postgres", served=True),
    "sqlite-server": Place("sqlite-normal", "?synchronous=normal", served=True),
}
USUAL: Final = ("sqlite", "postgres", "valkey")


@contextlib.contextmanager
def empty(places: Places, storage: str) -> Iterator[str]:
    """The URL of this storage, emptied; or of a server over it, which runs meanwhile."""
    made = STORAGES[storage]
    place = places.of(made.base)
    place.reset()
    url = place.url + made.query
    if not made.served:
        yield url
        return
    with serving(url, pinned=False) as server:
        yield f"http://127.0.0.1:{server.port}"
