"""Tools for testing jobs: a clock that the test advances, `drain`, and replays of durable jobs.

Simulations of whole fleets, and the tests for storages and ports of your own, are in a separate distribution,
`treadle-testkit`.
"""

from __future__ import annotations

from treadle.storage import StorageProxy
from treadle.testing.app import Testing
from treadle.testing.assertions import Call
from treadle.testing.clock import HandClock
from treadle.testing.drain import Endless, drain
from treadle.testing.given_storage import NotEmpty
from treadle.testing.replay import Replayed, replay

__all__ = [
    "Call",
    "Endless",
    "HandClock",
    "NotEmpty",
    "Replayed",
    "StorageProxy",
    "Testing",
    "drain",
    "replay",
]
