"""Hearing what the functions notify at their commits: one connection that listens, and comes back by itself.

Without it workers would find new work at the next poll only. Hints: nothing depends on their arrival.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from treadle.storage.hints import Hub
from treadle.storage.postgres.connection import CONNECT
from treadle.storage.postgres.line import Line, connect
from treadle.storage.postgres.statements import channel_of, quoted

AGAIN: Final = (0.1, 5.0)  # s between two attempts to come back: the first, and the longest
PING: Final = 20.0  # s until the connection is asked whether it lives
LIMIT: Final = 5.0  # s for that answer
IDLE: Final = 30.0  # s nobody has waited for a kind of topic until its channel is left
NEW: Final = 5.0  # s for that after opening: who only sends jobs is not to be told of each of them
KINDS: Final = ("say", "ends")

_topics = msgspec.json.Decoder(list[str]).decode


class Ear:
    """Two channels: `say` (queues, workers) and `ends` (jobs), so that workers need not hear of every ending."""

    def __init__(self, conninfo: str, schema: str, hub: Hub) -> None:
        self._conninfo, self._hub = conninfo, hub
        self._channels = {kind: channel_of(schema, kind) for kind in KINDS}
        self._kinds = {channel: kind for kind, channel in self._channels.items()}
        self._listening: set[str] = set()  # kinds; confirmed
        self._waiting = dict.fromkeys(KINDS, 0)
        self._last = dict.fromkeys(KINDS, 0.0)  # kind -> when somebody last waited for it
        self._change = asyncio.Event()
        self._ready = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Listen to both, so that nothing spoken from now on is missed."""
        self._last = dict.fromkeys(KINDS, asyncio.get_running_loop().time() - IDLE + NEW)
        self._task = asyncio.create_task(self._keep_listening())
        with contextlib.suppress(TimeoutError):  # then polling has to do, and the task goes on trying
            async with asyncio.timeout(CONNECT):
                await self._ready.wait()

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None and not task.get_loop().is_closed():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def wait(self, topics: Sequence[str], timeout: float) -> set[str]:
        kinds = {_kind_of(topic) for topic in topics}
        for kind in kinds:
            self._waiting[kind] += 1
        if not kinds <= self._listening:
            self._change.set()
        try:
            return await self._hub.wait(topics, timeout)
        finally:
            now = asyncio.get_running_loop().time()
            for kind in kinds:
                self._waiting[kind] -= 1
                self._last[kind] = now

    async def _keep_listening(self) -> None:
        pause = AGAIN[0]
        while True:
            line: Line | None = None
            try:
                line = Line(await connect(self._conninfo, CONNECT), False, self._heard)
                await self._listen(line)
                pause, rest = AGAIN[0], NEW
                while line.open:
                    await self._quiet(line, rest)
                    await self._listen(line)
                    rest = PING
            except Exception:  # whatever it was, polling is the net, and we try again
                await asyncio.sleep(pause)
                pause = min(2 * pause, AGAIN[1])
            finally:
                self._listening.clear()
                if line is not None:
                    line.close()

    async def _quiet(self, line: Line, rest: float) -> None:
        """Until there is something to do: another channel is wanted, the connection is lost, or it is time to ask."""
        waits: Sequence[Callable[[], object]] = (self._change.wait, line.lost)
        tasks = [asyncio.ensure_future(wait()) for wait in waits]  # type: ignore[call-overload]
        try:
            await asyncio.wait(tasks, timeout=rest, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self, line: Line) -> None:
        """Listen to what is wanted, leave what is not; with nothing to change, ask whether the connection lives."""
        self._change.clear()
        now = asyncio.get_running_loop().time()
        wanted = {kind for kind in KINDS if self._waiting[kind] or now - self._last[kind] < IDLE}
        changes = [f"LISTEN {quoted(self._channels[kind])}" for kind in KINDS if kind in wanted - self._listening]
        changes += [f"UNLISTEN {quoted(self._channels[kind])}" for kind in KINDS if kind in self._listening - wanted]
        for change in changes or ["SELECT 1"]:
            await line.run(change, (), LIMIT, often=False)
        new, self._listening = wanted - self._listening, wanted
        if self._ready.is_set() and new:  # something may have been said meanwhile
            self._hub.speak([topic for topic in self._hub.topics if _kind_of(topic) in new])
        self._ready.set()

    def _heard(self, channel: str, payload: str) -> None:
        if channel in self._kinds:
            with contextlib.suppress(msgspec.MsgspecError):
                self._hub.speak(_topics(payload))


def _kind_of(topic: str) -> str:
    return "ends" if topic.startswith("job:") else "say"
