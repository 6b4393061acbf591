"""Every kind of storage that a server may use, including the composed ones and a second server."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fixtures import KINDS, a_storage
from tests.served import memory_url
from tests.servers import valkey
from tests.storage.shards_kit import SHARDS, any_id
from treadle.core.clock import Clock
from treadle.ports import Ports, file_queue, memory_pubsub, memory_store
from treadle.storage.composed import ComposedStorage
from treadle.storage.contract import Storage
from treadle.storage.http import HttpStorage
from treadle.storage.redis import ShardedRedis

EVERY = (*KINDS, "shards", "ports", "http")

_names = (f"places{os.getpid()}-{n}" for n in itertools.count())


@contextmanager
def a_place(kind: str, folder: Path, now: Clock | None = None) -> Iterator[Storage]:
    """An empty storage of this kind. `now` is the clock that it reads in place of its own, except behind HTTP."""
    if kind == "shards":
        yield ShardedRedis(valkey.url(), ns=next(_names), shards=SHARDS, spreads=any_id, now=now)
    elif kind == "ports":
        yield ComposedStorage(Ports(file_queue(folder / "queue"), memory_pubsub(), memory_store()), now=now)
    elif kind == "http":
        yield HttpStorage(memory_url(None))
    else:
        with a_storage(kind, folder, now) as storage:
            yield storage
