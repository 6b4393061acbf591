"""Ports of which one single call fails, in each way in which a call can fail; test_port_calls.py tries them all."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from treadle.ports import MemoryBackend, Ports

How = Literal["before", "after", "lost", "dies before", "dies after"]
HOWS: tuple[How, ...] = ("before", "after", "lost", "dies before", "dies after")


class Breaking:
    """Counts the calls of all three ports; the call with this number fails.

    before        the call fails, and nothing was done
    after         it fails after it was done
    lost          it was done, and never returns
    dies before   nothing was done; this call and all later ones of this process never return
    dies after    it was done, and then the same
    """

    def __init__(self, backend: MemoryBackend, number: int | None = None, how: How = "before") -> None:
        self.number, self.how = number, how
        self.calls = 0
        self.died = asyncio.Event()
        self.ports = Ports(*(_Port(self, port) for port in backend))

    @property
    def happened(self) -> bool:
        return self.number is not None and self.calls >= self.number

    async def pass_on(self, method: Any, *args: Any, **named: Any) -> Any:
        if self.died.is_set():
            await asyncio.Event().wait()
        self.calls += 1
        if self.calls != self.number:
            return await method(*args, **named)
        if self.how == "before":
            raise ConnectionError(f"{method.__name__}: made to fail before")
        if self.how == "dies before":
            self.died.set()
            await asyncio.Event().wait()
        answer = await method(*args, **named)
        if self.how == "after":
            raise ConnectionError(f"{method.__name__}: made to fail after")
        if self.how == "dies after":
            self.died.set()
        if self.how != "before":
            await asyncio.Event().wait()
        return answer


class _Port:
    def __init__(self, breaking: Breaking, port: Any) -> None:
        self._breaking, self._port = breaking, port

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._port, name)
        if not callable(method):
            return method

        async def call(*args: Any, **named: Any) -> Any:
            return await self._breaking.pass_on(method, *args, **named)

        call.__name__ = name
        return call
