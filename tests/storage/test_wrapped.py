"""A storage whose texts are encrypted obeys the laws of every storage."""

from __future__ import annotations

import pytest

from treadle import Keys
from treadle.storage.contract import Storage
from treadle.storage.memory import MemoryStorage
from treadle.storage.payloads import PayloadStorage
from treadle.storage.payloads.texts import Texts
from treadle.testing import HandClock
from treadle_testkit.conformance import *  # noqa: F403
from treadle_testkit.conformance.run import MakeStorage

del test_more_a_capability_has_its_methods  # noqa: F821 - a wrapper has every method, and passes the capabilities on

KEY = Keys.make("k1")


@pytest.fixture
def durable() -> bool:
    return False


@pytest.fixture
def two_loops() -> bool:
    return False


@pytest.fixture
def make_storage() -> MakeStorage:
    made: list[Storage] = []

    async def make(clock: HandClock, share: bool = False) -> Storage:
        if not share:
            made.append(PayloadStorage(MemoryStorage(clock), Texts(None, 1, Keys(KEY))))
        await made[-1].open()
        return made[-1]

    return make
