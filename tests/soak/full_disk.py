"""A SQLite file on a file system of its own, which is full for a while."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from pathlib import Path
from typing import ClassVar

from tests.faults.stages import SqliteStage

SIZE = "64m"  # more than a trial needs
CHUNK = b"\0" * 65_536


class SmallDiskStage(SqliteStage):
    """Needs Linux and the right to mount; raises RuntimeError otherwise."""

    name = "small disk"
    ways: ClassVar[tuple[str, ...]] = ("disk full", "locked")

    def __init__(self, shared: bool = False) -> None:
        super().__init__(shared)
        self.outages["disk full"] = self._fill, self._clear

    @property
    def _filler(self) -> Path:
        return self.path.with_name("filler")

    async def open(self) -> None:
        command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "treadle-soak", self.folder.name]
        made = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
        if made.returncode:
            raise RuntimeError(f"a file system of its own needs the right to mount one: {made.stderr.strip()}")

    async def close(self) -> None:
        self.lock.close()
        await asyncio.to_thread(subprocess.run, ["umount", "--lazy", self.folder.name], check=True)
        self.folder.cleanup()

    async def _fill(self) -> None:
        """Fill the disk. Data that was written before can still be read, and overwritten."""
        await asyncio.to_thread(self._write_filler)

    def _write_filler(self) -> None:
        with self._filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                if file.write(CHUNK) < len(CHUNK):
                    return

    async def _clear(self) -> None:
        self._filler.unlink()
