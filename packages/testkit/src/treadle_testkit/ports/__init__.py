"""Tests that any queue, pub/sub or store port must pass.

A test module for a queue is below. For `pubsub` and `store` use `make_pubsub` and `make_store`:

    import pytest
    from treadle_testkit.ports.queue import *  # noqa: F403

    @pytest.fixture
    def make_queue():
        return lambda clock: MyQueue(...)      # a new, empty one each time; may be a coroutine function

If queued data outlives the object, `make_queue` has an attribute `reopen(clock)`, which opens the latest queue again,
as after a crash of its process. The tests advance a clock by hand. For a system with its own clock, define the fixture
`advance`: a coroutine function that lets the given number of seconds pass there. Needs pytest and no plugin.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in ("queue", "pubsub", "store")))
