"""The storage in the memory of one process: the reference for every other storage."""

from treadle.storage.memory.storage import MemoryStorage

__all__ = ["MemoryStorage"]
