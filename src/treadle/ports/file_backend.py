"""All three ports for one program without a server: a queue and a store in files, listeners in this process."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from treadle.core import clock as clocks
from treadle.ports.file import FileQueue, file_queue
from treadle.ports.file_store import FileStore, file_store
from treadle.ports.memory import MemoryPubSub, memory_pubsub


class FileBackend(NamedTuple):
    """All three, in one folder: hand it to `App(ports=...)`."""

    queue: FileQueue
    pubsub: MemoryPubSub
    store: FileStore


def file_backend(folder: str | Path, *, clock: clocks.Clock = clocks.wall) -> FileBackend:
    """All three for one process: jobs survive it, and the next process goes on with them. The files are `queue.*` and
    `store.db` in `folder`, which is made if it is not there."""
    folder = Path(folder)
    return FileBackend(
        file_queue(folder / "queue", clock=clock), memory_pubsub(), file_store(folder / "store.db", clock=clock)
    )
