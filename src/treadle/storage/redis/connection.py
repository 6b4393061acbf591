"""Connections to the server: held by ourselves, one trip each, and given up when anything goes wrong.

Without it commands would be packed in plain Python (the driver's asynchronous client does, 1.75 us a job against 0.28)
and each verb would have an idea of its own of what may be repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import hiredis
from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as Broken
from redis.exceptions import NoScriptError, RedisError, ResponseError

from treadle.errors import BadUrl
from treadle.storage.redis.faults import translated
from treadle.storage.redis.scripts import Script

Command = tuple[Any, ...]
MOST: Final = 16  # connections at once; further calls wait for one of them
TIMEOUT: Final = 15.0  # s for the answer of one trip
CONNECT: Final = 5.0  # s

OPTIONS: Final = frozenset({
    "db", "client_name", "ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile", "ssl_password", "ssl_cert_reqs",
    "ssl_check_hostname",
})  # fmt: skip

Kind = type[Connection | SSLConnection | UnixDomainSocketConnection]


def address(url: str) -> tuple[Kind, dict[str, Any]]:
    """What the driver makes of a URL. Raises BadUrl."""
    others = sorted({name for name, _ in parse_qsl(urlsplit(url).query, keep_blank_values=True)} - OPTIONS)
    if others:
        raise BadUrl(f"{', '.join(others)}: no such option for this storage, found in {shown(url)!r}")
    try:
        words: dict[str, Any] = dict(parse_url(url))
    except (ValueError, TypeError) as error:
        raise BadUrl(f"{error}, found {shown(url)!r}") from error
    kind: Kind = words.pop("connection_class", Connection)
    return kind, words


def shown(url: str) -> str:
    """The URL without its password, for messages."""
    scheme, mark, rest = url.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}"


class Pool:
    """The connections to one server, and the trips over them."""

    def __init__(self, url: str) -> None:
        self.where = shown(url)
        self._kind, self._words = address(url)
        self._free: list[Any] = []
        self._places = asyncio.Semaphore(MOST)
        self._closed = False

    async def connect(self) -> Any:
        """A new connection; the caller has it for itself."""
        made: Any = self._kind(
            **self._words, protocol=2, retry=Retry(NoBackoff(), 0), socket_timeout=None,
            socket_connect_timeout=CONNECT,
        )  # fmt: skip
        try:
            async with asyncio.timeout(CONNECT):
                await made.connect()
        except BaseException as error:
            await made.disconnect(nowait=True)
            raise translated(error, self.where) from error
        return made

    async def close(self) -> None:
        self._closed = True
        for connection in self._free:
            await connection.disconnect()
        self._free.clear()

    async def run(self, *calls: tuple[Script, Command]) -> list[Any]:
        """Several scripts in one trip; the answers in order. Repeated once if an old connection turns out dead: every
        script may be repeated."""
        async with self._places:
            if self._free:
                try:
                    return await self._trip(self._free.pop(), calls)
                except TimeoutError as error:
                    raise translated(error, self.where) from error
                except (Broken, OSError):
                    self._drop_idle()
            connection = await self.connect()
            try:
                return await self._trip(connection, calls)
            except (RedisError, OSError) as error:
                raise translated(error, self.where) from error

    async def command(self, *words: Any) -> Any:
        """One plain command, which changes nothing."""
        connection = self._free.pop() if self._free else await self.connect()
        try:
            async with asyncio.timeout(TIMEOUT):
                await connection.send_packed_command(hiredis.pack_command(words), check_health=False)
                answer = await self._answer(connection)
        except BaseException as error:
            connection._close()
            raise translated(error, self.where) from error
        self._free.append(connection)
        if isinstance(answer, ResponseError):
            raise translated(answer, self.where) from answer
        return answer

    def _drop_idle(self) -> None:
        """Those that idled beside a dead one are dead too, most likely."""
        idle, self._free = self._free, []
        for connection in idle:
            connection._close()

    async def _trip(self, connection: Any, calls: Sequence[tuple[Script, Command]]) -> list[Any]:
        try:
            async with asyncio.timeout(TIMEOUT):
                packed = [hiredis.pack_command((b"EVALSHA", script.sha, *words)) for script, words in calls]
                await connection.send_packed_command(b"".join(packed), check_health=False)
                answers = [await self._answer(connection) for _ in calls]
                for number, (script, words) in enumerate(calls):
                    if isinstance(answers[number], NoScriptError):  # nothing ran: a new server, or one that forgot
                        await connection.send_packed_command(hiredis.pack_command((b"EVAL", script.text, *words)))
                        answers[number] = await self._answer(connection)
        except BaseException:
            connection._close()  # an answer may still be on its way
            raise
        if self._closed or len(self._free) >= MOST:
            await connection.disconnect()
        else:
            self._free.append(connection)
        for answer in answers:
            if isinstance(answer, ResponseError):
                raise translated(answer, self.where) from answer
        return answers

    @staticmethod
    async def _answer(connection: Any) -> Any:
        try:
            return await connection.read_response(disable_decoding=True)
        except ResponseError as error:
            return error
