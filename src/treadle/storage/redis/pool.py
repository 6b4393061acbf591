"""Connections to the server: held by ourselves, one trip each, and given up when anything goes wrong.

Without it commands would be packed in plain Python (the driver's asynchronous client does, 1.75 us a job against 0.28)
and each verb would have an idea of its own of what may be repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Final

import hiredis
from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    ClusterDownError,
    MovedError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    TryAgainError,
)
from redis.exceptions import BusyLoadingError as Loading
from redis.exceptions import ConnectionError as Broken

from treadle.storage.redis.connection import Connection
from treadle.storage.redis.errors import says, translated
from treadle.storage.redis.scripts import Script
from treadle.storage.redis.topology import Place

Command = tuple[Any, ...]
Call = tuple[Script, Command]
MOST: Final = 16  # connections at once; further calls wait for one of them
TIMEOUT: Final = 15.0  # s for the answer of one trip
PATIENCE: Final = 4.0  # s a server that may be found elsewhere is looked for, before the caller is told
PAUSE: Final = 0.05  # s between two looks
DENIED: Final = (
    AuthenticationError,
    AuthorizationError,
)  # the driver makes them ConnectionErrors; trying again is no use
ELSEWHERE: Final = (AskError, ClusterDownError, MovedError, ReadOnlyError, TryAgainError)  # said before anything ran


class Pool:
    """The connections to one server, and the trips over them.

    What goes wrong is tried again where that can help: once on a new connection, if an old one turned out dead; for
    `PATIENCE` seconds where the server may be found elsewhere. Every script may be repeated.
    """

    def __init__(self, place: Place) -> None:
        self.where = place.where
        self._place = place
        self._free: list[Connection] = []
        self._places = asyncio.Semaphore(MOST)
        self._closed = False

    async def connect(self) -> Any:
        """A new connection; the caller has it for itself."""
        try:
            return await self._place.connect()
        except BaseException as error:
            raise translated(error, self.where) from error

    async def close(self) -> None:
        self._closed = True
        while self._free:
            await self._free.pop().closed()

    def run(self, *calls: Call) -> Coroutine[Any, Any, list[Any]]:
        """Several scripts in one trip; the answers in order."""
        return self._repeated(calls, b"".join(map(_packed, calls)), len(calls))

    async def command(self, *words: Any) -> Any:
        """One plain command, which changes nothing when it is repeated."""
        [answer] = await self._repeated((), hiredis.pack_command(words), 1)
        return answer

    async def _repeated(self, calls: Sequence[Call], packed: bytes, answers: int) -> list[Any]:
        """The answers, none of which is an error."""
        async with self._places:
            clock = asyncio.get_running_loop().time
            give_up, was_idle = clock() + PATIENCE, bool(self._free)
            while True:
                try:
                    return await self._trip(calls, packed, answers)
                except TimeoutError as error:
                    raise translated(error, self.where) from error
                except (RedisError, OSError) as error:
                    again = (
                        was_idle and isinstance(error, (Broken, OSError)) and not isinstance(error, (*DENIED, Loading))
                    )
                    pause = 0.0 if again or isinstance(error, MovedError) else PAUSE
                    if not again and not (self._place.moves and clock() < give_up and _elsewhere(error)):
                        raise translated(error, self.where) from error
                    was_idle = False
                self._drop_idle()
                if pause:
                    await asyncio.sleep(pause)

    async def _trip(self, calls: Sequence[Call], packed: bytes, wanted: int) -> list[Any]:
        wire = self._free.pop() if self._free else await self._connected()
        try:
            answers = await wire.ask(packed, wanted)
            for number, call in enumerate(calls):
                if isinstance(answers[number], NoScriptError):  # nothing ran: a new server, or one that forgot
                    script, words = call
                    [answers[number]] = await wire.ask(hiredis.pack_command((b"EVAL", script.text, *words)), 1)
        except BaseException as error:
            wire.close()  # an answer may still be on its way
            if isinstance(error, (Broken, OSError)) and not isinstance(error, TimeoutError):
                self._place.lost()
            raise
        wrong = next((answer for answer in answers if isinstance(answer, RedisError)), None)
        if isinstance(wrong, DENIED):
            wire.close()
        elif wrong is not None and _elsewhere(wrong):
            wire.close()
            self._drop_idle()
            if isinstance(wrong, MovedError):
                self._place.moved((wrong.host, wrong.port))
            elif not isinstance(wrong, (AskError, TryAgainError)):
                self._place.lost()
        elif self._closed or len(self._free) >= MOST:
            wire.close()
        else:
            self._free.append(wire)
        if wrong is not None:
            raise wrong
        return answers

    async def _connected(self) -> Connection:
        try:
            return Connection(await self._place.connect(), TIMEOUT)
        except TimeoutError as error:  # of one address; the next look may find another
            raise Broken("the connection took too long") from error

    def _drop_idle(self) -> None:
        """Those that idled beside a dead one are dead too, most likely; and those to whom it was before, no use."""
        idle, self._free = self._free, []
        for wire in idle:
            wire.close()


def _elsewhere(error: Exception) -> bool:
    """Whether another server may answer, or this one in a moment."""
    if isinstance(error, DENIED):
        return False
    return isinstance(error, (Broken, OSError, *ELSEWHERE)) or says(error, ("READONLY",))


def _packed(call: Call) -> bytes:
    script, words = call
    packed: bytes = hiredis.pack_command((b"EVALSHA", script.sha, *words))
    return packed
