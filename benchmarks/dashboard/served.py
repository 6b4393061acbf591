"""A server process with the dashboard, and the CPU time of a process and its children."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def server(url: str, folder: str) -> Iterator[tuple[str, int]]:
    """Run `treadle server --dashboard` on a storage -> its URL and process id."""
    command = [sys.executable, "-m", "treadle", "server", "--dashboard", "--quiet", "--port", "0", "--url", url]
    child = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    assert child.stderr is not None
    said = ""
    try:
        for line in child.stderr:
            said += line
            if "the dashboard is at" in line:
                break
        else:
            raise RuntimeError(f"the server did not start:\n{said}")
        yield said.rpartition(" ")[2].strip().removesuffix("/dashboard/"), child.pid
    finally:
        child.send_signal(signal.SIGTERM)
        child.communicate()


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    found = [pid]
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                found += family(int(child))
    return found


def cpu(pids: list[int]) -> float:
    """CPU seconds of these processes and their descendants so far."""
    total = 0.0
    for pid in {each for one in pids for each in family(one)}:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total
