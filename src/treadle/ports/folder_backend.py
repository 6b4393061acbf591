"""All three ports for one program without a server: a queue and a store in files, a pub/sub in this process."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from treadle.core import clock as clocks
from treadle.ports.file import FileQueue, file_queue
from treadle.ports.memory import MemoryPubSub, memory_pubsub
from treadle.ports.sqlite_store import FileStore, file_store


class FileBackend(NamedTuple):
    """All three ports in one folder: pass it to `App(ports=...)`."""

    queue: FileQueue
    pubsub: MemoryPubSub
    store: FileStore


def file_backend(folder: str | Path, *, clock: clocks.Clock = clocks.wall) -> FileBackend:
    """All three ports for one process at a time. Jobs survive it, and the next process continues them. The files are
    `queue.*` and `store.db` in `folder`, which is created if missing."""
    folder = Path(folder)
    return FileBackend(
        file_queue(folder / "queue", clock=clock), memory_pubsub(), file_store(folder / "store.db", clock=clock)
    )
