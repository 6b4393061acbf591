"""The contract of `treadle.storage.contract` as tests: any storage can be held to it.

A test module runs all of it, each law under its own name, with this and nothing else:

    import pytest
    from treadle.testing.conformance import *  # noqa: F403

    @pytest.fixture
    def make_storage(tmp_path):
        places = []

        async def make(clock, share=False):
            if not share:                       # fresh and empty
                places.append(tmp_path / f"{len(places)}.db")
            storage = MyStorage(places[-1], now=clock)   # share: one more connection to the last one's data
            await storage.open()
            return storage

        return make

The suite closes what it made. More fixtures may be given: `durable` (True unless you say so: the data outlives the
object), `speaks` (True: `watch` wakes on hints; say False for a storage that only sleeps), and `user_transaction` for a
storage that is Transactional (see `OpenTransaction` in `run.py`; without it those laws are skipped).

The tests need pytest and no plugin: each runs its own event loop. They never sleep; time is a clock moved by hand.
Select with `-k law04`; the numbers are those of the laws in the documentation, `more` is what no law says.
"""

from __future__ import annotations

from importlib import import_module

import pytest

from treadle.testing.conformance.run import durable, speaks, tests_of, user_transaction

LAWS = (
    "line",
    "foreign",
    "lanes",
    "lease",
    "acts",
    "texts",
    "ranges",
    "waiting",
    "reopening",
    "keys",
    "reach",
    "limits",
    "rules",
    "prune",
    "looking",
    "hints",
    "handing",
    "races",
    "transaction",
    "moving",
)
pytest.register_assert_rewrite(*(f"{__name__}.laws_{name}" for name in LAWS))

_tests = {name: test for law in LAWS for name, test in tests_of(import_module(f"{__name__}.laws_{law}")).items()}
globals().update(_tests)

__all__ = ["durable", "speaks", "user_transaction", *_tests]  # noqa: PLE0604 - the names of the tests
