"""Finds the thread of a stuck worker process that keeps the interpreter busy, and the job that it runs.

The process cannot run Python. Its signal handler in C writes the stacks of all threads into a file of the supervisor;
the system says which thread has used the processor meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from treadle.worker.fleet.messages import Vitals
from treadle.worker.jobs_of_others import Place

SAMPLE: Final = 0.5  # s between two reads of the processor time of the threads
BUSY: Final = 0.3  # share of SAMPLE from which a thread counts as busy
WRITING: Final = 1.0  # s that the process gets to write its stacks
_HEAD: Final = re.compile(r"^(?:Current thread|Thread) 0x([0-9a-f]+).*most recent call first", re.MULTILINE)
_LOOP: Final = re.compile(r"[/\\](?:selectors\.py|threading\.py|(?:asyncio|uvloop)[/\\]\w+\.\w+)$")
_FRAME: Final = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)


@dataclass(frozen=True)
class Stack:
    """The stack of one thread, its innermost frame first: file, line and function."""

    ident: int
    text: str
    frames: tuple[tuple[str, int, str], ...]

    @property
    def is_idle(self) -> bool:
        """Whether this is the stack of an event loop that waits, for events or for the interpreter's lock."""
        return bool(self.frames) and _LOOP.search(self.frames[0][0]) is not None

    def runs(self, place: Place) -> bool:
        """Whether the function of this job is on the stack."""
        return any(
            (file, name) == (place.file, place.function) and line >= place.line for file, line, name in self.frames
        )


@dataclass(frozen=True)
class Culprit:
    """The thread that keeps a process from answering. thread: its name; None: that of the event loop."""

    stack: Stack
    thread: str | None

    def words(self, jobs: Sequence[Place]) -> str:
        """A clause about the thread. jobs: the jobs of the process, some of which the thread may run."""
        who = self.thread or ("something" if self.stack.is_idle else None)
        does = "the event loop is blocked" if who is None else f"{who} keeps the interpreter's lock"
        suspects = [job for job in jobs if self.stack.runs(job)]
        if not suspects:
            return does
        which = "job" if len(suspects) == 1 else "one of the jobs"
        ids = ", ".join(job.id for job in suspects[:5]) + (", ..." if len(suspects) > 5 else "")
        return f"{which} {ids} of task {suspects[0].task}: {does}"


def parsed(text: str) -> list[Stack]:
    """The stacks in what `faulthandler` has written, each thread once."""
    starts = [head.start() for head in _HEAD.finditer(text)]
    stacks: dict[int, Stack] = {}
    for head, end in zip(_HEAD.finditer(text), [*starts[1:], len(text)], strict=False):
        part, ident = text[head.start() : end], int(head[1], 16)
        frames = tuple((file, int(line), name) for file, line, name in _FRAME.findall(part))
        stacks.setdefault(ident, Stack(ident, part.rstrip(), frames))
    return list(stacks.values())


def processor_times(pid: int) -> dict[int, float]:
    """Seconds of processor time of each thread, by native id; {} where the system does not say so."""
    times: dict[int, float] = {}
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            fields = (thread / "stat").read_text().rpartition(")")[2].split()
            times[int(thread.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except OSError:
        pass  # the system has no such files, or a thread has ended
    return times


async def busiest(pid: int) -> int | None:
    """The native id of the thread that uses most of the processor now; None: none does, or it is unknown."""
    before = processor_times(pid)
    await asyncio.sleep(SAMPLE)
    used = {thread: time - before.get(thread, time) for thread, time in processor_times(pid).items()}
    most = max(used, key=used.__getitem__, default=None)
    return None if most is None or used[most] < BUSY * SAMPLE else most


def culprit_of(
    pid: int, busy: int | None, stacks: Sequence[Stack], vitals: Vitals | None, jobs: Sequence[Place]
) -> Culprit | None:
    """The thread that keeps the process from answering: the one that computes; otherwise that of the event loop, unless
    it waits and only one other thread runs a job. A thread that began after the last vitals is missing in them, so its
    identifier is unknown."""
    known = {native: (ident, name) for native, ident, name in (() if vitals is None else vitals.threads)}
    names = dict(known.values())
    main = vitals.threads[0][1] if vitals is not None and vitals.threads else 0
    loop = [stack for stack in stacks if stack.ident == main] or list(stacks[-1:])  # the main thread is listed last
    others = [stack for stack in stacks if stack not in loop]
    if busy is not None and busy != pid:
        new = [stack for stack in others if stack.ident not in names]
        others = [stack for stack in others if stack.ident == known.get(busy, (0, ""))[0]] or new
    elif busy == pid or not loop or not loop[0].is_idle:
        others = []
    else:
        others = [stack for stack in others if any(stack.runs(job) for job in jobs)]
    if len(others) == 1:
        return Culprit(others[0], names.get(others[0].ident, f"thread {others[0].ident:#x}"))
    return Culprit(loop[0], None) if loop else None
