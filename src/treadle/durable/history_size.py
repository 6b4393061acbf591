"""How large the history of a job may be, and the warnings before that."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Final

from treadle.core import defaults
from treadle.core.errors import CODE, TooLarge
from treadle.tasks.options import Sizes

log = logging.getLogger("treadle")

REFERENCE: Final = 110  # bytes of a reference to a text in the blob store


class HistorySize:
    """The sizes of the entries of one job. `offload`: bytes above which a text goes to the blob store; 0: there is
    none."""

    def __init__(self, job: str, sizes: Sizes, offload: int) -> None:
        self._job, self._sizes, self._offload = job, sizes, offload
        self._in_row, self._offloaded = 0, 0  # bytes
        self.most = sizes.steps  # entries

    def forget(self, more: int) -> None:
        """Entries from now on are those of another job, which may have `more` of them than its own."""
        self._in_row, self._offloaded = 0, 0
        self.most += more

    def add(self, key: str, size: int, times: int = 1) -> None:
        """Count an entry; `times=-1`: it is replaced. In the row, a text of the blob store is a reference."""
        is_apart = 0 < self._offload < size
        self._in_row += times * (len(key.encode()) + (REFERENCE if is_apart else size))
        self._offloaded += times * size * is_apart

    def add_all(self, texts: Mapping[str, str]) -> None:
        """Count the stored entries. `map` calls `str.encode` without the interpreter: a replay has thousands."""
        sizes = list(map(len, map(str.encode, texts.values())))
        apart = [size for size in sizes if self._offload < size] if self._offload else []
        self._in_row += sum(map(len, map(str.encode, texts))) + sum(sizes) - sum(apart) + REFERENCE * len(apart)
        self._offloaded += sum(apart)

    def refuse_more(self, count: int) -> None:
        """Raise TooLarge if a job with this many entries can have no further one."""
        if count >= self.most:
            error = TooLarge(f"the list of steps of job {self._job}", count + 1, self.most)
            error.fails_as = CODE
            raise error

    def keep(self, key: str, size: int, before: int | None, count: int, is_last: bool) -> None:
        """Count a new entry, or one in place of another. Raises TooLarge, and then counts nothing.

        before   bytes of the entry that it replaces; None: it is new
        count    entries of the job without it
        is_last  the job fails with it, so no size is too large
        """
        sizes, sums = self._sizes, (self._in_row, self._offloaded)
        most = max(sizes.step, sizes.result) if self._offload else sizes.step
        if size > defaults.WARN_AT * most:
            self._warn(f"the result of step {key!r} has {size:,} of at most {most:,} bytes")
        if before is not None:
            self.add(key, before, -1)
        self.add(key, size)
        try:
            if not is_last:
                self._check(key, size, most)
        except TooLarge:
            self._in_row, self._offloaded = sums
            raise
        if sums[0] <= defaults.WARN_AT * sizes.checkpoints < self._in_row:
            self._warn(f"its steps have {self._in_row:,} of at most {sizes.checkpoints:,} bytes")
        if before is None and count + 1 == math.ceil(defaults.WARN_AT * sizes.steps):
            self._warn(f"it has {count + 1:,} of at most {sizes.steps:,} steps")

    def _check(self, key: str, size: int, most: int) -> None:
        cure = "" if self._offload else "give the app a blob store with App(blobs=...), or "
        if size > most:
            raise TooLarge.of_result(f"the checkpoint of step {key!r} of job {self._job}", size, most, cure)
        of_all = f"the sum of the checkpoints of job {self._job}, with {key!r},"
        if self._in_row > self._sizes.checkpoints:
            raise TooLarge.of_result(of_all, self._in_row, self._sizes.checkpoints, cure)
        if self._offloaded > (room := defaults.MAX_OFFLOADED):
            raise TooLarge.of_result(f"{of_all} in the blob store", self._offloaded, room)

    def _warn(self, what: str) -> None:
        log.warning("job %s nears a limit of durable code: %s; current().restart() begins anew", self._job, what)
