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
from treadle.ports import Ports, file_queue, memory_pubsub, memory_store
from treadle.storage.composed import ComposedStorage
from treadle.storage.contract import Storage
from treadle.storage.http import HttpStorage
from treadle.storage.redis import ShardedRedis

EVERY = (*KINDS, "shards", "ports", "http")

_names = (f"places{os.getpid()}-{n}" for n in itertools.count())


@contextmanager
def a_place(kind: str, folder: Path) -> Iterator[Storage]:
    """An empty storage of this kind."""
    if kind == "shards":
        yield ShardedRedis(valkey.url(), ns=next(_names), shards=SHARDS, spreads=any_id)
    elif kind == "ports":
        yield ComposedStorage(Ports(file_queue(folder / "queue"), memory_pubsub(), memory_store()))
    elif kind == "http":
        yield HttpStorage(memory_url(None))
    else:
        with a_storage(kind, folder) as storage:
            yield storage
