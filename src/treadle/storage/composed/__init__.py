"""The storage that is composed of three ports: a queue, a pub/sub and a key-value store."""

from treadle.storage.composed.storage import ComposedStorage

__all__ = ["ComposedStorage"]
