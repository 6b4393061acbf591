"""The contract of `treadle.storage.contract` as tests that any storage can run.

A test module like this one runs all of them, each law under its own name:

    import pytest
    from treadle_testkit.conformance import *  # noqa: F403

    @pytest.fixture
    def make_storage(tmp_path):
        files = []

        async def make(clock, share=False):
            if not share:                       # fresh and empty
                files.append(tmp_path / f"{len(files)}.db")
            storage = MyStorage(files[-1], now=clock)   # share: one more connection to the latest data
            await storage.open()
            return storage

        return make

The suite closes the storages. Other fixtures are optional: `durable` (default True: the data outlives the object),
`speaks` (default True: `watch` wakes when a topic is published; return False if it only sleeps), `two_loops` (default
True: two event loops of one process may use the data, each with a storage object of its own), `spoil_count` (changes
a kept count behind the storage's back; without it the laws of repairs are skipped), and `user_transaction` for a
Transactional storage (see `OpenTransaction` in `run.py`; its laws are skipped if the fixture is missing).

The tests need pytest and no plugin: each runs its own event loop. They never sleep and advance a clock by hand. Select
laws with `-k law04`: the numbers are those of the documentation; `more` marks tests that belong to no numbered law.
"""

from __future__ import annotations

from importlib import import_module

import pytest

from treadle_testkit.conformance.run import durable, speaks, spoil_count, tests_of, two_loops, user_transaction

LAWS = (
    "queue_order",
    "storing",
    "instants",
    "foreign",
    "lanes",
    "versions",
    "lease",
    "paused",
    "repeats",
    "acts",
    "capabilities",
    "checkpoints",
    "texts",
    "ranges",
    "waiting",
    "followups",
    "children",
    "reopening",
    "retried_later",
    "ids",
    "keys",
    "key_replacing",
    "reach",
    "slots",
    "costs",
    "spent",
    "spent_races",
    "pauses",
    "rates",
    "held_slots",
    "limit_changes",
    "bounds",
    "shedding",
    "rules",
    "prune",
    "queries",
    "glance",
    "counts",
    "scanning",
    "metrics",
    "hints",
    "handoff",
    "races",
    "transaction",
    "moving",
)
pytest.register_assert_rewrite(*(f"{__name__}.laws_{name}" for name in LAWS))

_tests = {name: test for law in LAWS for name, test in tests_of(import_module(f"{__name__}.laws_{law}")).items()}
globals().update(_tests)

__all__ = ["durable", "speaks", "spoil_count", "two_loops", "user_transaction", *_tests]  # noqa: PLE0604 - the names of the tests
