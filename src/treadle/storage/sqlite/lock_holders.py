"""Names the process that holds a lock on a file, where the system lists locks (Linux).

It opens none of the files: closing a descriptor of a database drops all locks that this process has on it.
"""

from __future__ import annotations

import os
from typing import Final

LISTED: Final = "/proc/locks"
WRITER: Final = 120  # the byte of the -shm file that SQLite locks while a transaction writes in WAL mode


def writer_of(path: str) -> tuple[int | None, str]:
    """The process whose transaction writes to this database, and the name of its program; None: unknown."""
    return holder_of(path + "-shm", WRITER)


def holder_of(path: str, byte: int = 0) -> tuple[int | None, str]:
    """The process that has locked this byte of the file for writing, and the name of its program; None: unknown."""
    try:
        status = os.stat(path)
        with open(LISTED) as listed:
            lines = listed.read().splitlines()
    except OSError:
        return None, ""
    named = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for line in lines:
        columns = line.split()  # number, kind, way, mode, process, file, first byte, last byte; "->" if it waits
        if "->" in columns or len(columns) < 8 or columns[3] != "WRITE" or columns[5] != named:
            continue
        first, last = int(columns[6]), None if columns[7] == "EOF" else int(columns[7])
        if first <= byte and (last is None or byte <= last) and int(columns[4]) > 0:
            return int(columns[4]), _program(int(columns[4]))
    return None, ""


def _program(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as named:
            return named.read().strip()
    except OSError:
        return ""
