"""The capabilities of a storage and the methods that belong to them. A worker reads only the capabilities."""

from __future__ import annotations

import pytest

from treadle.storage.contract import Storage
from treadle.storage.proxy import StorageProxy

METHODS = {
    "settle_claim": ("settle_claim",),
    "hand_off": ("post",),
    "transactions": ("within", "begin"),
    "movable": ("read_mark", "set_mark", "unload", "load"),
    "marks": ("read_mark",),
}


@pytest.mark.parametrize("name", METHODS)
async def test_more_a_capability_has_its_methods(storage: Storage, name: str) -> None:
    """A storage has both or neither: a worker never calls a method that no capability names."""
    there = all(callable(getattr(storage, method, None)) for method in METHODS[name])
    assert getattr(storage.capabilities, name) == there


async def test_more_a_proxy_passes_the_capabilities_on(storage: Storage) -> None:
    assert StorageProxy(storage).capabilities == storage.capabilities
