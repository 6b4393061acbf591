"""Reads the resource use of processes from /proc: CPU time, memory, bytes written; and how busy other processes are.

Without /proc these figures are unknown.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def known() -> bool:
    return (PROC / "self/stat").exists()


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat after the name, which may contain spaces: state, parent, ..."""
    try:
        return (PROC / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None


def tree(roots: Iterable[int]) -> list[int]:
    """These processes and all their descendants."""
    children: dict[int, list[int]] = {}
    for name in os.listdir(PROC) if known() else ():
        if name.isdigit() and (fields := _stat(int(name))):
            children.setdefault(int(fields[1]), []).append(int(name))
    found, todo = [], list(roots)
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children.get(pid, [])
    return found


def cpu(roots: Iterable[int]) -> float:
    """CPU seconds of the trees, including children that have ended and were waited for."""
    return sum(sum(map(int, fields[11:15])) for pid in tree(roots) if (fields := _stat(pid))) / TICKS


def memory(roots: Iterable[int]) -> float:
    """MB in memory now; shared pages count for each process."""
    return sum(int(fields[21]) for pid in tree(roots) if (fields := _stat(pid))) * PAGE / 2**20


def written(roots: Iterable[int]) -> int:
    """Bytes that the trees have passed to write() so far."""
    total = 0
    for pid in tree(roots):
        try:
            said = (PROC / str(pid) / "io").read_text()
        except OSError:
            continue
        total += int(said.split("wchar: ")[1].split()[0])
    return total


def _machine() -> float:
    """CPU seconds used by all processes of the machine."""
    user, nice, system, _, _, irq, soft, steal = map(int, (PROC / "stat").read_text().split()[1:9])
    return (user + nice + system + irq + soft + steal) / TICKS


class Others:
    """How many cores other processes used while this was open: shows which figures to distrust."""

    cores = 0.0

    def __enter__(self) -> Others:
        self._at = (time.monotonic(), _machine(), cpu([os.getpid()])) if known() else (0.0, 0.0, 0.0)
        return self

    def __exit__(self, *_: object) -> None:
        if known():
            at, machine, own = self._at
            used = (_machine() - machine) - (cpu([os.getpid()]) - own)
            self.cores = max(0.0, used / max(0.01, time.monotonic() - at))
