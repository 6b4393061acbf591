"""The laws of looks, where no number of jobs counts as few, and each step reads only some rows of a page."""

from __future__ import annotations

import itertools

import pytest

from tests.servers import valkey
from treadle.storage.redis import RedisStorage, counts, lists, metrics, plans, reading
from treadle.testing import HandClock
from treadle_testkit.conformance import durable, laws_glance, laws_metrics, laws_scanning, run, speaks
from treadle_testkit.conformance.run import MakeStorage

__all__ = ["durable", "speaks"]
for _laws in (laws_scanning, laws_metrics):
    globals().update(run.tests_of(_laws))
globals().update({name: law for name, law in run.tests_of(laws_glance).items() if "limits" in name})

_names = (f"many{n}" for n in itertools.count())


@pytest.fixture
def make_storage(monkeypatch: pytest.MonkeyPatch) -> MakeStorage:
    monkeypatch.setattr(plans, "FEW", 0)
    for module in (reading, counts, metrics):
        monkeypatch.setattr(module, "STEP", 3)
    monkeypatch.setattr(reading, "DUE_STEP", 2)
    monkeypatch.setattr(lists, "CHECKED", 2)
    made: list[str] = []

    async def make(clock: HandClock, share: bool = False) -> RedisStorage:
        if not share:
            made.append(next(_names))
        storage = RedisStorage(valkey.url(), ns=made[-1], now=clock)
        await storage.open()
        return storage

    return make
