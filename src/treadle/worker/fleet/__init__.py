"""Worker processes under one supervisor, which starts, watches, replaces and stops them."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.worker.fleet.fleet import Fleet
    from treadle.worker.fleet.fleet_counts import FleetCounts
    from treadle.worker.fleet.messages import Hello, Orders
    from treadle.worker.fleet.recycling import Recycling
    from treadle.worker.fleet.supervisor_link import SupervisorLink
else:
    from treadle.core.lazy_names import lazy_names

    __getattr__, __dir__ = lazy_names(
        __name__,
        globals(),
        {
            "treadle.worker.fleet.fleet": ("Fleet",),
            "treadle.worker.fleet.fleet_counts": ("FleetCounts",),
            "treadle.worker.fleet.messages": ("Hello", "Orders"),
            "treadle.worker.fleet.recycling": ("Recycling",),
            "treadle.worker.fleet.supervisor_link": ("SupervisorLink",),  # it needs what Windows does not have
        },
    )

__all__ = ["Fleet", "FleetCounts", "Hello", "Orders", "Recycling", "SupervisorLink"]
