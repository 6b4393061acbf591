"""The HTTP protocol of a queue of sandboxed modules, and of its blobs."""

from treadle.contrib.queuey.app import queue_routes
from treadle.contrib.queuey.blobs import blob_routes
from treadle.contrib.queuey.jobs import Rules

__all__ = ["Rules", "blob_routes", "queue_routes"]
