"""Keeps connections to the server, makes round trips over them, and repeats those that may be repeated.

hiredis packs the commands: 0.28 us per job. The driver's asynchronous client packs them in Python: 1.75 us. A
connection is closed when a trip over it fails.
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
from treadle.storage.redis.topology import ServerAddress

Command = tuple[Any, ...]
Call = tuple[Script, Command]
MOST: Final = 16  # concurrent connections; further calls wait for a free one
TIMEOUT: Final = 15.0  # seconds to wait for the answers of one trip
PATIENCE: Final = 4.0  # seconds for which a server that may have another address is looked up before the call fails
PAUSE: Final = 0.05  # seconds between two attempts
# subclasses of the driver's ConnectionError, but repeating does not help
DENIED: Final = (AuthenticationError, AuthorizationError)
# returned before anything ran
ELSEWHERE: Final = (AskError, ClusterDownError, MovedError, ReadOnlyError, TryAgainError)


class Pool:
    """The connections to one server, and the trips over them.

    A failed trip is repeated where that can help: once on a new connection if an idle one was dead, and for `PATIENCE`
    seconds if the server may have another address. Every script may be repeated.

    look  scripts run as those that the server lets only read
    """

    def __init__(self, place: ServerAddress, look: bool = False) -> None:
        self.where, self.look = place.where, look
        self._place = place
        self._free: list[Connection] = []
        self._places = asyncio.Semaphore(MOST)
        self._closed = False

    async def connect(self) -> Any:
        """A new connection that only the caller uses."""
        try:
            return await self._place.connect()
        except BaseException as error:
            raise translated(error, self.where) from error

    async def close(self) -> None:
        self._closed = True
        while self._free:
            await self._free.pop().closed()

    def run(self, *calls: Call) -> Coroutine[Any, Any, list[Any]]:
        """Run several scripts in one trip; return their answers in order."""
        verb = b"EVALSHA_RO" if self.look else b"EVALSHA"
        packed = b"".join([hiredis.pack_command((verb, script.sha, *arguments)) for script, arguments in calls])
        return self._repeated(calls, packed, len(calls))

    async def command(self, *command: Any) -> Any:
        """Run one plain command, which must be safe to repeat."""
        [answer] = await self.commands(command)
        return answer

    async def commands(self, *commands: Sequence[Any]) -> list[Any]:
        """Run several plain commands in one trip, each safe to repeat. Raises the first error among their answers."""
        return await self._repeated(
            (), b"".join([hiredis.pack_command(tuple(command)) for command in commands]), len(commands)
        )

    async def _repeated(self, calls: Sequence[Call], packed: bytes, answers: int) -> list[Any]:
        """Return the answers of a trip, repeated where that can help. Raises the first error among them."""
        async with self._places:
            clock = asyncio.get_running_loop().time
            give_up, was_idle = clock() + PATIENCE, bool(self._free)
            while True:
                try:
                    return await self._trip(calls, packed, answers)
                except TimeoutError as error:
                    raise translated(error, self.where) from error
                except (RedisError, OSError) as error:
                    is_broken = isinstance(error, (Broken, OSError)) and not isinstance(error, (*DENIED, Loading))
                    again = was_idle and is_broken
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
                if isinstance(answers[number], NoScriptError):  # the script is unknown, so nothing ran
                    script, arguments = call
                    verb = b"EVAL_RO" if self.look else b"EVAL"
                    [answers[number]] = await wire.ask(hiredis.pack_command((verb, script.text, *arguments)), 1)
        except BaseException as error:
            wire.close()  # an answer may be outstanding
            if isinstance(error, (Broken, OSError)) and not isinstance(error, TimeoutError):
                self._place.lost()
            raise
        refused = next((answer for answer in answers if isinstance(answer, RedisError)), None)
        if isinstance(refused, DENIED):
            wire.close()
        elif refused is not None and _elsewhere(refused):
            wire.close()
            self._drop_idle()
            if isinstance(refused, MovedError):
                self._place.moved((refused.host, refused.port))
            elif not isinstance(refused, (AskError, TryAgainError)):
                self._place.lost()
        elif self._closed or len(self._free) >= MOST:
            wire.close()
        else:
            self._free.append(wire)
        if refused is not None:
            raise refused
        return answers

    async def _connected(self) -> Connection:
        try:
            return Connection(await self._place.connect(), TIMEOUT)
        except TimeoutError as error:  # one address took too long; the next attempt may find another
            raise Broken("the connection took too long") from error

    def _drop_idle(self) -> None:
        """Close all idle connections. If one was dead, the others most likely are too; if the server has moved, all of
        them lead to the former one."""
        idle, self._free = self._free, []
        for wire in idle:
            wire.close()


def _elsewhere(error: Exception) -> bool:
    """Whether another server may answer, or this one after a pause."""
    if isinstance(error, DENIED):
        return False
    return isinstance(error, (Broken, OSError, *ELSEWHERE)) or says(error, ("READONLY", "NOREPLICAS"))
