"""The processes of a trial: started, killed, stopped in the middle and started again, each with a history of its
own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
from collections import Counter, defaultdict
from pathlib import Path

from tests.soak.skew import MachineClock
from tests.waiting import NotSeen, until
from treadle.core.clock import wall
from treadle.testing.history import History

BEGIN = 120.0  # seconds until a process must have begun: starting Python takes long on a busy machine
END = 40.0  # seconds that a stopping process may take: more than its grace and its calls


class Fleet:
    """Workers and producers by role, such as "worker1".

    url, database, plant  as tests.soak.process takes them
    skewed                about half of the processes have a clock that is wrong (tests.soak.skew)
    other_version         a folder with another version of Treadle, which the roles with an odd number use
    clock                 the machine's, if it can be set
    died                  processes that ended without having been killed, with the end of what they said
    """

    def __init__(
        self, folder: Path, url: str, database: str | None, seed: int, patience: float, plant: str = "", *,
        skewed: bool = False, settable: bool = False, other_version: Path | None = None,
    ) -> None:  # fmt: skip
        self.folder, self.url, self.database = folder, url, database
        self.seed, self.patience, self.plant = seed, patience, plant
        self._skewed, self._rng = skewed, random.Random(f"{seed} clocks")
        self._other_version = other_version
        self.clock = MachineClock(folder / "clock") if settable else None
        self.done: Counter[str] = Counter()
        self.died: list[str] = []
        self.history = History("nemesis", clock=wall, path=folder / "nemesis.jsonl")
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._actors: dict[str, str] = {}
        self._killed: set[str] = set()
        self._busy: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # two faults may choose the same role
        self._serial = 0
        self._read: dict[Path, int] = {}

    @property
    def roles(self) -> list[str]:
        return sorted(self._processes)

    @property
    def paths(self) -> list[Path]:
        return sorted(self.folder.glob("*.jsonl"))

    async def start(self, role: str) -> None:
        """Start it, and return when it has begun."""
        self._serial += 1
        actor = f"{role}.{self._serial}"
        path = self.folder / f"{actor}.jsonl"
        words = role.rstrip("0123456789"), self.url, str(path), actor, str(self.seed * 1000 + self._serial)
        with (self.folder / f"{actor}.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                *self._program(),
                *words,
                str(self.patience),
                self.database or "",
                self.plant,
                env=self._environment(role),
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
        self._actors[role], self._processes[role] = actor, process  # together: a trial may end while it is created

        def begun() -> bool:
            return path.exists() and path.stat().st_size > 0

        with contextlib.suppress(NotSeen):
            await until(lambda: begun() or process.returncode is not None, "the first line of a process", BEGIN)
        if not begun():
            self._note_death(role)

    def _program(self) -> tuple[str, ...]:
        """The module, and what it takes before the arguments of a process."""
        if self.clock is not None:
            return "tests.soak.skewed", str(self.clock.path)
        if not self._skewed or self._rng.random() < 0.5:
            return ("tests.soak.process",)
        self.done["wrong clock"] += 1
        return "tests.soak.skewed", f"{self.seed} {self._serial}"

    def _environment(self, role: str) -> dict[str, str]:
        """The environment of a process, in which it finds its version of Treadle."""
        if self._other_version is None or int(role[-1]) % 2 == 0:
            return {**os.environ}
        return {**os.environ, "PYTHONPATH": str(self._other_version)}

    async def kill(self, role: str) -> None:
        """kill -9, and start another process in its place."""
        async with self._busy[role]:
            await self._kill(role)

    async def _kill(self, role: str) -> None:
        process = self._processes[role]
        if process.returncode is None:
            self._killed.add(self._actors[role])
            os.kill(process.pid, signal.SIGKILL)
            self.done["kill"] += 1
        else:
            self._note_death(role)
        await process.wait()
        self.history.add("crashed", actor=self._actors[role])
        await self.start(role)

    async def start_if_dead(self, role: str) -> None:
        """Start another process in place of one that ended by itself, which counts as died."""
        if self._processes[role].returncode is not None:
            self._note_death(role)
            await self.start(role)

    async def stall(self, role: str, seconds: float) -> None:
        """Send SIGSTOP, and SIGCONT after this time."""
        async with self._busy[role]:
            await self._stall(role, seconds)

    async def _stall(self, role: str, seconds: float) -> None:
        process = self._processes[role]
        if process.returncode is not None:
            return self._note_death(role)
        os.kill(process.pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            os.kill(process.pid, signal.SIGCONT)
        self.history.add("stalled", actor=self._actors[role], seconds=seconds)
        self.done["stall"] += 1
        return None

    async def end(self, kind: str) -> None:
        """Send SIGTERM to all processes of a kind; those that do not end in time count as died."""
        roles = [role for role in self.roles if role.startswith(kind)]
        for role in roles:
            if self._processes[role].returncode is None:
                self._processes[role].terminate()
            else:
                self._note_death(role)
        for role in roles:
            process = self._processes.pop(role)
            try:
                async with asyncio.timeout(END):
                    await process.wait()
            except TimeoutError:
                self.died.append(f"{self._actors[role]} did not end within {END:g} s of SIGTERM")
                process.kill()
                await process.wait()

    async def close(self) -> None:
        """Kill the remaining processes."""
        for process in self._processes.values():
            if process.returncode is None:
                process.kill()
            await process.wait()
        self.history.close()

    def _note_death(self, role: str) -> None:
        actor = self._actors[role]
        if actor in self._killed:
            return  # killed by this fleet, and the trial ended before another one had begun
        said = (self.folder / f"{actor}.log").read_text(errors="replace")[-2_000:]
        word = f"{actor} ended by itself with exit code {self._processes[role].returncode}:\n{said}"
        if not any(died.startswith(f"{actor} ") for died in self.died):
            self.died.append(word)

    def count(self) -> None:
        """Add up the new entries of the histories, to show progress."""
        for path in self.paths:
            begin = self._read.get(path, 0)
            with path.open("rb") as file:
                file.seek(begin)
                new = file.read()
            self._read[path] = begin + len(new)
            for word in ("stored", "began", "settled", "act", "signal"):
                self.done[word] += new.count(f'"what":"{word}"'.encode())
            self.done["fork"] += new.count(b'"text":"fork"')
            if self._other_version is not None:
                self.done["other version"] += new.count(f'"name":"{self._other_version}/'.encode())
