"""Calls that continue when their caller is cancelled."""

from __future__ import annotations

import asyncio

from treadle.concurrency.uncut import UncutCalls


def test_a_call_whose_loop_was_closed_is_not_waited_for() -> None:
    """The loop ends in the turn in which the call ends, so its callbacks do not run."""
    calls = UncutCalls()
    loop = asyncio.new_event_loop()

    async def call() -> None:
        loop.stop()

    making = loop.create_task(calls.make(call()))
    loop.run_forever()
    making.cancel()
    making._log_destroy_pending = False  # type: ignore[attr-defined]
    making.get_coro().close()
    loop.close()
    assert not calls.in_progress

    async def ended() -> None:
        async with asyncio.timeout(10):
            await calls.ended()

    asyncio.run(ended())
