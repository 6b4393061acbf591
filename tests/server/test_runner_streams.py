"""Streams of runners in other languages, on every storage: fenced by the claim, and void when a step runs again."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.test_api import session
from tests.server.test_runner_steps import Run, Site, site, sizes
from treadle import Chunk, Reset
from treadle.core import defaults
from treadle.testing import HandClock
from treadle_testkit.shows import shows

__all__ = ["session", "site", "sizes"]


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


async def write(run: Run, *values: Any, status: int = 200, **fields: Any) -> Any:
    body = {"id": run.id, "version": run.version, "name": "tokens", "values": values, **fields}
    found, answer = await run.site.call("POST", "/v1/work/stream", body, run.token)
    assert found == status, answer
    return answer if status == 200 else answer["message"]


async def text_of(site: Site, run: Run) -> str:
    return "".join(await site.app.jobs.stream(run.id, "tokens"))


async def again(site: Site) -> Run:
    """The job after its runner has died."""
    site.clock.advance(31)
    [run] = await site.claim()
    return run


@shows("a runner in any language writes to a stream of its job, and readers follow it")
async def test_chunks_of_a_step(site: Site) -> None:
    run = await site.run()
    new = await run.step("say")
    assert await write(run, "one ", "two ", step=new["step"]) == {"status": "stored", "next": 2}
    assert await text_of(site, run) == "one two "
    assert await write(run, "three", step=new["step"]) == {"status": "stored", "next": 3}
    assert (await run.step("say", result="one two three"))["status"] == "done"
    assert "has ended" in await write(run, "late", step=new["step"], status=422)
    assert await run.report(succeed=1) == "applied"
    entries = [entry async for entry in site.app.jobs.follow(run.id, "tokens")]
    assert entries == [Chunk(0, "one ", "say"), Chunk(1, "two ", "say"), Chunk(2, "three", "say")]
    assert (await write(run, "late"))["status"] == "lost"


@shows("the chunks of a runner that has died are void when its job runs again")
@pytest.mark.parametrize("writes", [True, False])
async def test_a_later_run_voids_the_chunks_of_an_earlier_one(site: Site, writes: bool) -> None:
    dead = await site.run()
    await dead.step("say")
    await write(dead, "wro", "ng", step="say")
    run = await again(site)
    await run.step("say")
    if writes:
        await write(run, "right", step="say")
        await write(run, "!", step="say")
    assert (await write(dead, "late", step="say"))["status"] == "lost"
    await run.step("say", result="right!")
    assert await text_of(site, run) == ("right!" if writes else "")
    entries = [entry for entry in [*(await entries_of(site, run))] if isinstance(entry, Reset)]
    assert entries == [Reset(2, 0, "say")]


async def entries_of(site: Site, run: Run) -> list[Chunk | Reset]:
    assert await run.report(succeed=1) == "applied"
    return [entry async for entry in site.app.jobs.follow(run.id, "tokens")]


@pytest.mark.parametrize("writes", [True, False])
async def test_a_job_without_steps(site: Site, writes: bool) -> None:
    dead = await site.run()
    await write(dead, "wrong")
    run = await again(site)
    if writes:
        await write(run, "right")
    assert await run.report(succeed=1) == "applied"
    assert await text_of(site, run) == ("right" if writes else "")
    assert [entry.offset async for entry in site.app.jobs.follow(run.id, "tokens")][:2] == [0, 1]


@shows("a call of a runner that is repeated, because its answer was lost, adds its chunks once")
async def test_a_repeated_call(site: Site) -> None:
    run = await site.run()
    first = await write(run, "a", at=0)
    second = await write(run, "b", at=first["next"])
    assert await write(run, "b", at=first["next"]) == second
    assert await text_of(site, run) == "ab"


async def test_calls_that_are_refused(site: Site) -> None:
    await site.enqueue(queue="mine")
    [run] = await site.claim("mine")
    assert "write it in parts" in await write(run, "x" * defaults.MAX_CHUNK, status=422)
    assert "log lines" in await write(run, "x", name="log", status=422)
    assert (await write(run, "x", version=run.version + 1))["status"] == "lost"
    run.token = "mine"
    assert (await write(run, "x"))["status"] == "stored"
    await run.step("charge", result=1)
    assert "takes steps" in await write(run, "x", status=422)
    other = await site.run()
    other.token = "mine"
    assert (await write(other, "x"))["status"] == "lost"
