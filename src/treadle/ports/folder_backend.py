"""All three ports for one program without a server: a queue and a store in files, a pub/sub in this process."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

from treadle.core import clock as clocks
from treadle.ports.file import FileQueue, file_queue
from treadle.ports.memory import MemoryPubSub, memory_pubsub
from treadle.ports.sqlite_store import FileStore

log = logging.getLogger("treadle")


class FileBackend(NamedTuple):
    """All three ports in one folder: pass it to `App(ports=...)`."""

    queue: FileQueue
    pubsub: MemoryPubSub
    store: FileStore


def file_backend(folder: str | Path, *, clock: clocks.Clock = clocks.wall) -> FileBackend:
    """All three ports for one process at a time. Jobs survive it, and the next process continues them, including those
    that were running when it was killed. The files are `queue.*` and `store.db` in `folder`, which is created if
    missing. Files of the queue that cannot be read are kept under another name and reported in the log: the jobs are in
    the store."""
    folder = Path(folder)
    queue = file_queue(folder / "queue", clock=clock, on_error=_report, corrupt="aside")
    return FileBackend(queue, memory_pubsub(), FileStore(folder / "store.db", clock=clock, alone=queue.alone))


def _report(error: Exception) -> None:
    log.warning("%s", error)
