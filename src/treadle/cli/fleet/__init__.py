"""A supervisor of worker processes: starts, watches, replaces and stops them."""

from treadle.cli.fleet.fleet import Fleet
from treadle.cli.fleet.greeting import greet, greet_again
from treadle.cli.fleet.recycling import Recycling
from treadle.cli.fleet.worker_process import WorkerProcess

__all__ = ["Fleet", "Recycling", "WorkerProcess", "greet", "greet_again"]
