"""A process that is paused: its loop is blocked, in the middle of calls. Laws 4 and 17."""

from __future__ import annotations

import asyncio
import threading

import pytest

from treadle.core.model import Presence
from treadle.storage.contract import Storage
from treadle.testing.clock import HandClock
from treadle_testkit.conformance.kit import claim_ids, claim_one, done, job, jobs, renewal, settle
from treadle_testkit.conformance.run import Connect
from treadle_testkit.shows import shows

LONGEST = 60.0  # s until a call counts as stopped for ever


class Paused:
    """Another process at the storage, as a thread. Its loop is blocked at a given turn of its calls, until `release`
    is set."""

    def __init__(self, connect: Connect, turns: int) -> None:
        self._connect, self._turns = connect, turns
        self.blocked, self.release = threading.Event(), threading.Event()
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            asyncio.run(self._play())
        except BaseException as error:
            self.error = error
        finally:
            self.blocked.set()

    async def _play(self) -> None:
        other = await self._connect()
        up = await claim_one(other, "theirs", lease=10)
        await claim_one(other, "held", lease=10)
        calls = [settle(other, done(up)), other.enqueue([job(f"t{n}", after=("down0",)) for n in range(200)])]
        running = [asyncio.ensure_future(call) for call in calls]
        for _ in range(self._turns):
            await asyncio.sleep(0)
        self.blocked.set()
        self.release.wait(LONGEST)
        await asyncio.gather(*running)
        await other.close()


@shows("a process whose event loop is blocked does not stop the calls of others", area="Crashes and outages")
@pytest.mark.parametrize("turns", range(1, 9))
async def test_law17_a_paused_process_stops_no_other(
    storage: Storage, connect: Connect, clock: HandClock, two_loops: bool, turns: int
) -> None:
    """It may stop in any of its calls: other processes enqueue, claim, renew and settle jobs, and its leases expire."""
    if not two_loops:
        pytest.skip("only one event loop uses this storage")
    await storage.enqueue([job("up", queue="theirs"), job("held", queue="held"), job("mine", queue="mine")])
    await storage.enqueue([job(f"down{n}", after=("up",)) for n in range(200)])
    mine = await claim_one(storage, "mine", lease=10)
    paused = Paused(connect, turns)
    try:
        await asyncio.to_thread(paused.blocked.wait, LONGEST)
        await storage.enqueue(jobs("a b", queue="new"))
        assert await claim_ids(storage, 1, "new") == ["a"]
        held = await storage.heartbeat(Presence(worker="w"), [renewal(mine)], 30)
        assert not held.lost
        clock.advance(11)
        assert await claim_ids(storage, 9, "held") == ["held"]
        await settle(storage, done(mine))
    finally:
        paused.release.set()
        await asyncio.to_thread(paused.thread.join, LONGEST)
    if paused.error is not None:
        raise paused.error
