"""The HTTP protocol of a queue of sandboxed modules, and of its blobs."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.contrib.queuey.app import queue_routes
    from treadle.contrib.queuey.blobs import blob_routes
    from treadle.contrib.queuey.jobs import Rules
else:
    from treadle.core.lazy_names import lazy_names

    # The command line reads the options of the protocol without the libraries of a server.
    __getattr__, __dir__ = lazy_names(
        __name__,
        globals(),
        {
            "treadle.contrib.queuey.app": ("queue_routes",),
            "treadle.contrib.queuey.blobs": ("blob_routes",),
            "treadle.contrib.queuey.jobs": ("Rules",),
        },
    )

__all__ = ["Rules", "blob_routes", "queue_routes"]
