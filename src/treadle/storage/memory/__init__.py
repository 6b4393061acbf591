"""The contract in the plainest terms, in one process: what every other storage is held to."""

from treadle.storage.memory.storage import MemoryStorage

__all__ = ["MemoryStorage"]
