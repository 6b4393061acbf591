"""A SQLite file on a machine whose clock is set while the fleet works."""

from __future__ import annotations

from typing import ClassVar

from tests.faults.stages import SqliteStage


class SetClockStage(SqliteStage):
    """The clock is set by the nemesis, see `tests.soak.skew.MachineClock`."""

    name = "set clock"
    settings: ClassVar[tuple[float, ...]] = (-15.0, -3.0, 0.0, 3.0, 15.0)  # s ahead of the true time
