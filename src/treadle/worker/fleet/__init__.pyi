"""The names of the package, each with its module. Type checkers read this file, and so does `__init__.py`."""

from treadle.worker.fleet.fleet import Fleet as Fleet
from treadle.worker.fleet.fleet_counts import FleetCounts as FleetCounts
from treadle.worker.fleet.messages import Hello as Hello
from treadle.worker.fleet.messages import Orders as Orders
from treadle.worker.fleet.recycling import Recycling as Recycling
from treadle.worker.fleet.supervisor_link import SupervisorLink as SupervisorLink
