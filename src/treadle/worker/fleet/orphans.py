"""Reaps the ended processes that a supervisor with process id 1 inherits.

In a container without an init, process 1 becomes the parent of each process whose own parent has ended, such as those
of `kind="process"` after their worker was killed. They fill the process table until their exit codes are read.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection
from typing import Final

EVERY: Final = 1.0  # s between two looks


async def reap_orphans(own: Callable[[], Collection[int]]) -> None:
    """Reap once a second. `own`: the ids of the children whose exit codes asyncio reads; 0 for one that is being
    created."""
    while True:
        await asyncio.sleep(EVERY)
        reap(own())


def reap(own: Collection[int]) -> list[int]:
    """Reap the ended children that are not our own -> their process ids."""
    reaped = list[int]()
    if 0 in own:
        return reaped
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None or ended.si_pid in own:  # asyncio reads that one; those behind it have time
                return reaped
            os.waitpid(ended.si_pid, os.WNOHANG)
        except ChildProcessError:
            return reaped
        reaped.append(ended.si_pid)
