"""The HTTP protocol of a queue of sandboxed modules, and of its blobs."""

from treadle.compat.queuey.app import queue_routes
from treadle.compat.queuey.blobs import blob_routes
from treadle.compat.queuey.jobs import Rules

__all__ = ["Rules", "blob_routes", "queue_routes"]
