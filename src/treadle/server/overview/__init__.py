"""The present state of a storage for people: one look at a time for all readers of a server process."""

from treadle.server.overview.compose import Look, compose
from treadle.server.overview.looks import Looks
from treadle.server.overview.views import Overview

__all__ = ["Look", "Looks", "Overview", "compose"]
