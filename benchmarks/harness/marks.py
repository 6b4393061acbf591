"""The marks that jobs write when they run: how many there are, and the time of each.

Rates are computed from marks, because the libraries' own logs are not comparable.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

MARK: Final = struct.Struct("dd")  # when the body ran, when it was sent; the format of adapters/frame.py


class Marks:
    """The marks of all worker processes; each process writes a file, which grows meanwhile.

    Counting takes a few reads whatever the number of marks, so it does not slow down the measured processes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, mmap.mmap] = {}
        self._counts: dict[str, int] = {}

    def look(self) -> int:
        """How many there are now."""
        for name in os.listdir(self.folder):
            if name not in self._files and os.path.getsize(self.folder / name):
                with (self.folder / name).open("rb") as file:
                    self._files[name] = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        for name, mapped in self._files.items():
            self._counts[name] = _ends(mapped, self._counts.get(name, 0))
        return sum(self._counts.values())

    def read(self, begin: float = 0.0) -> Iterator[tuple[float, float]]:
        """When each job ran and was sent (0: not recorded), for those that ran later than `begin`."""
        self.look()
        for name, mapped in self._files.items():
            for mark in MARK.iter_unpack(mapped[: self._counts[name] * MARK.size]):
                if mark[0] > begin:
                    yield mark

    def count(self, begin: float, end: float) -> int:
        """How many jobs ran in this period."""
        return sum(begin <= ran < end for ran, _ in self.read(begin))

    def close(self) -> None:
        for mapped in self._files.values():
            mapped.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _ends(mapped: mmap.mmap, low: int) -> int:
    """The number of marks in a file; the first `low` are known to exist."""
    most, step = len(mapped) // MARK.size, 1
    while low + step <= most and MARK.unpack_from(mapped, (low + step - 1) * MARK.size)[0]:
        low, step = low + step, 2 * step
    high = min(low + step, most + 1)  # the first that is known not to exist, counted from 1
    while high - low > 1:
        middle = (low + high) // 2
        if MARK.unpack_from(mapped, (middle - 1) * MARK.size)[0]:
            low = middle
        else:
            high = middle
    return low
