"""Ports: three small interfaces for other systems (a queue, publish and subscribe, and a key-value store).

`App(ports=(queue, pubsub, store))` builds a storage from them. Implementations for brokers are separate modules:
`treadle.ports.redis`, `treadle.ports.sqs` and `treadle.ports.nats`.
"""

from typing import TYPE_CHECKING

from treadle.ports.contract import (
    CorruptQueue,
    Counting,
    Listener,
    Ports,
    PubSub,
    Pulled,
    Queue,
    Store,
    Timed,
    name_of_space,
    three,
)

if TYPE_CHECKING:
    from treadle.ports.disk import Files
    from treadle.ports.file import FileQueue, file_queue
    from treadle.ports.folder_backend import FileBackend, file_backend
    from treadle.ports.memory import (
        Dead,
        MemoryBackend,
        MemoryPubSub,
        MemoryQueue,
        MemoryStore,
        memory_backend,
        memory_pubsub,
        memory_queue,
        memory_store,
    )
    from treadle.ports.sqlite_store import FileStore, file_store
else:
    from treadle.core.lazy_names import lazy_names

    __getattr__, __dir__ = lazy_names(
        __name__,
        globals(),
        {
            "treadle.ports.disk": ("Files",),
            "treadle.ports.file": ("FileQueue", "file_queue"),
            "treadle.ports.folder_backend": ("FileBackend", "file_backend"),
            "treadle.ports.memory": (
                "Dead",
                "MemoryBackend",
                "MemoryPubSub",
                "MemoryQueue",
                "MemoryStore",
                "memory_backend",
                "memory_pubsub",
                "memory_queue",
                "memory_store",
            ),
            "treadle.ports.sqlite_store": ("FileStore", "file_store"),
        },
    )

__all__ = [
    "CorruptQueue",
    "Counting",
    "Dead",
    "FileBackend",
    "FileQueue",
    "FileStore",
    "Files",
    "Listener",
    "MemoryBackend",
    "MemoryPubSub",
    "MemoryQueue",
    "MemoryStore",
    "Ports",
    "PubSub",
    "Pulled",
    "Queue",
    "Store",
    "Timed",
    "file_backend",
    "file_queue",
    "file_store",
    "memory_backend",
    "memory_pubsub",
    "memory_queue",
    "memory_store",
    "name_of_space",
    "three",
]
