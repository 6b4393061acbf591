"""Numbers that a storage could not store are refused by every call, including the worker protocol."""

from __future__ import annotations

import pytest

from tests.served import memory_url
from treadle.core.limit_model import Declare, Limit, LimitChange
from treadle.core.model import NewJob
from treadle.errors import BadOption
from treadle.storage.http import HttpStorage

TOO_MANY = 10**9 + 1


@pytest.mark.parametrize(
    "job",
    [
        NewJob(id="a", task="t", limits=(("x", TOO_MANY),)),
        NewJob(id="a", task="t", priority=40_000),
        NewJob(id="a", task="t", delay=1e12),
        NewJob(id="a", task="t", keep=-1.0),
        NewJob(id="a", task="t", required=2**40),
    ],
)
async def test_a_client_refuses_jobs_out_of_range(job: NewJob) -> None:
    storage = HttpStorage(memory_url(None))
    await storage.open()
    with pytest.raises(BadOption, match="expected"):
        await storage.enqueue([job])
    assert await storage.get(["a"]) == [None]
    await storage.close()


@pytest.mark.parametrize(
    "change", [Limit("a", slots=TOO_MANY), Declare(Limit("a", rate=TOO_MANY)), Limit("a", rate=1, burst=-1)]
)
async def test_a_client_refuses_limits_out_of_range(change: LimitChange) -> None:
    storage = HttpStorage(memory_url(None))
    await storage.open()
    with pytest.raises(BadOption, match="1,000,000,000"):
        await storage.set_limits([change])
    await storage.close()
