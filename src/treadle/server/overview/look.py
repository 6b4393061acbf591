"""The data of one look at a storage, from which the overview of each caller is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from treadle.core.query_model import Count, Glance
from treadle.server.overview.activity import Activity
from treadle.storage import Risk


class Look(Struct, frozen=True, kw_only=True):
    """The data of one look.

    cost      seconds that it took
    every     seconds until the next one
    leader    the worker that does the maintenance
    activity  rates and times of the last minutes; None: no metrics
    failing   names of the schedules whose last job could not be enqueued
    exact     by queue, the jobs that its bound counts, where the glance does not show whether the queue is full
    counts    the jobs by queue, task and state; they may be older than the glance
    health    warnings and errors of the checks
    outage    seconds for which the storage has not answered; `glance` is then the last one that succeeded
    moved     where the jobs of the storage have moved
    emptied   when the storage was found empty, in words
    risks     the settings by which the storage may lose jobs
    """

    glance: Glance
    cost: float = 0.0
    every: float = 2.0
    leader: str | None = None
    activity: Activity | None = None
    failing: Sequence[str] = ()
    exact: Mapping[str, int] = {}
    counts: Sequence[Count] = ()
    health: int | None = None
    outage: float | None = None
    moved: str | None = None
    emptied: str | None = None
    risks: Sequence[Risk] = ()
