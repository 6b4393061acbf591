"""A storage made of three ports: a queue, publish and subscribe, keys and values."""

from treadle.storage.composed.storage import ComposedStorage

__all__ = ["ComposedStorage"]
