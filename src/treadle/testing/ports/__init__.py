"""What the ports must do as tests: any queue, pub/sub or store can be held to it.

A test module for a queue is this; `pubsub` and `store` are alike, with `make_pubsub` and `make_store`:

    import pytest
    from treadle.testing.ports.queue import *  # noqa: F403

    @pytest.fixture
    def make_queue():
        return lambda clock: MyQueue(...)      # a new, empty one each time; may be a coroutine function

If what is queued outlives the object, `make_queue` has an attribute `reopen(clock)`: the last one once more, as after
its process died. Time is a clock moved by hand; for a system with a clock of its own give the fixture `advance`, a
coroutine function that lets so many seconds pass there. Needs pytest and no plugin.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in ("queue", "pubsub", "store")))
