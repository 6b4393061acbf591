"""A stage whose jobs move to another storage while the fleet works: SQLite, Valkey, PostgreSQL, SQLite, and so on."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import sys
import tempfile
from typing import ClassVar

from tests.faults.stages import Stage
from tests.servers import postgres, valkey

WAIT = 2.0  # seconds that running jobs may take to end before they are moved
AGAIN = 20  # calls of the command; most are killed
_numbers = itertools.count()


class MovingStage(Stage):
    """The jobs are in the storage that `url` names, which changes with each move. The move itself is killed and
    repeated."""

    name = "moving"
    ways: ClassVar[tuple[str, ...]] = ()
    patience: ClassVar[tuple[str, ...]] = ()

    def __init__(self, shared: bool = False) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="treadle-stage-")
        self._kinds = itertools.cycle((self._file, self._valkey, self._postgres))
        self.outages = {}
        self.url = self.direct = next(self._kinds)()

    async def close(self) -> None:
        self._folder.cleanup()

    async def move(self, rng: random.Random) -> int:
        """Move all jobs to the next storage. Return how often the command was killed meanwhile."""
        target = await asyncio.to_thread(next(self._kinds))
        for kills in range(AGAIN):
            command = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "treadle", "storage", "move", "--wait", str(WAIT), self.url, target,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
            patience = rng.uniform(0.3, WAIT + 2.0) if kills < AGAIN - 1 else 60.0
            try:
                said, _ = await asyncio.wait_for(command.communicate(), patience)
            except TimeoutError:
                continue
            finally:
                with contextlib.suppress(ProcessLookupError):
                    command.kill()
                await command.wait()
            assert command.returncode == 0, said.decode()
            self.url = self.direct = target
            return kills
        raise AssertionError("the move did not end")

    def _file(self) -> str:
        return f"sqlite:///{self._folder.name}/jobs{next(_numbers)}.db"

    def _valkey(self) -> str:
        return f"{valkey.url()}?ns=moving-{os.getpid()}-{next(_numbers)}"

    def _postgres(self) -> str:
        return postgres.database()
