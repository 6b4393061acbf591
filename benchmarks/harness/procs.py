"""What processes use, read from /proc: CPU time, memory, bytes written; and how busy everybody else is.

Without it the harness would need a package for four numbers. Where there is no /proc, they are unknown.
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
    """The fields of /proc/PID/stat behind the name, which may hold blanks: state, parent, ..."""
    try:
        return (PROC / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None


def tree(roots: Iterable[int]) -> list[int]:
    """These processes and all that came of them."""
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
    """Seconds of CPU of the trees, with those of children that have ended and were waited for."""
    return sum(sum(map(int, fields[11:15])) for pid in tree(roots) if (fields := _stat(pid))) / TICKS


def memory(roots: Iterable[int]) -> float:
    """MB in memory now, shared pages counted for each."""
    return sum(int(fields[21]) for pid in tree(roots) if (fields := _stat(pid))) * PAGE / 2**20


def written(roots: Iterable[int]) -> int:
    """Bytes handed to write() by the trees so far."""
    total = 0
    for pid in tree(roots):
        try:
            said = (PROC / str(pid) / "io").read_text()
        except OSError:
            continue
        total += int(said.split("wchar: ")[1].split()[0])
    return total


def _machine() -> float:
    """Seconds of CPU that all processes of the machine have used."""
    user, nice, system, _, _, irq, soft, steal = map(int, (PROC / "stat").read_text().split()[1:9])
    return (user + nice + system + irq + soft + steal) / TICKS


class Others:
    """How many cores processes that are not ours kept busy while this was open: which figures to distrust."""

    cores = 0.0

    def __enter__(self) -> Others:
        self._at = (time.monotonic(), _machine(), cpu([os.getpid()])) if known() else (0.0, 0.0, 0.0)
        return self

    def __exit__(self, *_: object) -> None:
        if known():
            at, machine, own = self._at
            used = (_machine() - machine) - (cpu([os.getpid()]) - own)
            self.cores = max(0.0, used / max(0.01, time.monotonic() - at))
