"""How many bytes an integration may add to the headers of a job. It leaves its headers out rather than fail a call."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Mapping
from typing import Final

from treadle.core.model import NewJob, Record
from treadle.core.ranges import MOST_HEADERS
from treadle.execution.job_run import running_here

log = logging.getLogger("treadle")

LEFT_OUT: Final = (
    "the headers of a job of task %s have no room for %s, which %s leaves out: send fewer bytes in headers=; further "
    "ones are not logged"
)


class HeaderRoom:
    """The room of one app.

    name  of the integration, for the log
    most  bytes of headers that the app allows for one job
    """

    def __init__(self, name: str, most: int) -> None:
        self._name, self.most, self._logged = name, most, False

    def here(self, added: Container[str]) -> int:
        """The largest size in bytes of the headers that this run may add, under these names, to a job that it sends. A
        job that a run returns inherits the headers of the run's job in addition; storages refuse a job with more than
        MOST_HEADERS."""
        run = running_here()
        if run is None or not run.record.job.headers:
            return self.most
        return min(self.most, MOST_HEADERS - kept_size(run.record.job, added))

    def passes_on(self, record: Record, added: Mapping[str, str]) -> bool:
        """Whether all jobs that this run sends can inherit these headers, whatever headers they have of their own. Logs
        it if they cannot."""
        if self.most + kept_size(record.job, added) + size_of(added.items()) <= MOST_HEADERS:
            return True
        self.left_out(record.job.task, added)
        return False

    def left_out(self, task: str, names: Iterable[str]) -> None:
        """Log, once, that headers of these names were left out."""
        if not self._logged:
            self._logged = True
            log.warning(LEFT_OUT, task, " and ".join(names), self._name)


def kept_size(job: NewJob, added: Container[str]) -> int:
    """The size in bytes of the job's headers that stay when headers with these names are added."""
    return size_of(pair for pair in job.headers if pair[0] not in added) if job.headers else 0


def size_of(pairs: Iterable[tuple[str, str]]) -> int:
    """Bytes of the names and values together."""
    return sum(len(name.encode()) + len(value.encode()) for name, value in pairs)
