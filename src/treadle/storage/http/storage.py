"""The contract over HTTP: each verb is one request to a Treadle server, which owns the clock and the rules.

Without it only machines that reach the database could run jobs. Every verb may be repeated, so a connection that
broke before its answer is tried once more here, and beyond that by whoever called.
"""

from __future__ import annotations

import asyncio
import io
import ssl
from collections.abc import Sequence
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, urlsplit

import aiohttp
import msgspec

from treadle import defaults, wire
from treadle.errors import BadUrl, StorageError, StorageUnavailable
from treadle.model import Claim, Claimed, Hold, Limit, NewJob, Outcome, Page, Presence, Query, Record, Settled, Stats

T = TypeVar("T")

TIMEOUT: Final = 30.0  # s for an answer, beyond the time a call asks to wait
CONNECT: Final = 5.0  # s
CONNECTIONS: Final = 32  # at once; further calls wait for one of them
BIGGEST: Final = 16 * 2**20  # bytes of outcomes in one request; half of what a server takes by default
OPTIONS: Final = frozenset({"token", "ca"})

_encode = msgspec.json.Encoder().encode


class HttpStorage:
    """Jobs that live with a Treadle server.

    url    http://host:port or https://host:port, with a path if the server is mounted under one;
           ?token=... names the right to use it, ?ca=file.pem whom to trust instead of the system's authorities
    token  the same, where it is not to be part of the URL
    """

    def __init__(self, url: str, *, token: str | None = None) -> None:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        others = sorted(options.keys() - OPTIONS)
        if parts.scheme not in ("http", "https") or not parts.hostname or others or parts.fragment:
            what = f"{', '.join(others)}: no such option" if others else "expected http://host:port"
            raise BadUrl(f"{what}, found {parts._replace(query='').geturl()!r}")
        host = parts.netloc.rpartition("@")[2]
        self._base = f"{parts.scheme}://{host}{parts.path.rstrip('/')}/v1/work/"
        self._token = token or options.get("token") or parts.password
        self._ca = options.get("ca")
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Ask the server for what it holds, so that a wrong address or token shows now."""
        if self._session is not None:
            return
        trust: ssl.SSLContext | bool = ssl.create_default_context(cafile=self._ca) if self._ca else True
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=CONNECTIONS, ssl=trust, keepalive_timeout=30),
            headers=headers, auto_decompress=True,
        )  # fmt: skip
        try:
            await self._call("hello", b"{}", wire.Nothing)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Let go of all connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    # --- one trip

    async def _call(self, verb: str, body: bytes, answer: type[T], wait: float = 0.0) -> T:
        for last in (False, True):
            try:
                return msgspec.json.decode(await self._trip(verb, body, wait), type=answer)
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                # A kept connection the server has just closed looks like this too; the verb may be repeated.
                if last:
                    raise StorageUnavailable(f"{self._base}: {str(error) or type(error).__name__}") from error
            except (aiohttp.ClientError, TimeoutError) as error:
                raise StorageUnavailable(f"{self._base}: {str(error) or 'no answer in time'}") from error
            except msgspec.MsgspecError as error:
                raise StorageError(f"{self._base}{verb}: not the answer of a Treadle server: {error}") from error
        raise AssertionError

    async def _trip(self, verb: str, body: bytes, wait: float) -> bytes:
        if self._session is None:
            raise StorageUnavailable("the storage is not open")
        limit = aiohttp.ClientTimeout(total=TIMEOUT + wait, sock_connect=CONNECT)
        # A large body given as bytes would be warned of: it is in memory already, and sent in one piece all the same.
        data = body if len(body) < 2**20 else io.BytesIO(body)
        async with self._session.post(self._base + verb, data=data, timeout=limit) as response:
            content = await response.read()
        if response.status == 200:
            return content
        raise _refusal(response.status, content, self._base + verb)

    # --- the life of a job

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Record]:
        if not jobs:
            return []
        rows = (await self._call("enqueue", _encode(wire.Enqueue(tuple(jobs))), wire.Records)).records
        return [row for row in rows if row is not None]

    async def claim(self, ask: Claim) -> Claimed:
        return await self._call("claim", _encode(wire.claim_call(ask)), Claimed)

    async def heartbeat(self, worker: Presence, holds: Sequence[Hold], lease: float) -> set[str]:
        found = await self._call("heartbeat", _encode(wire.Beat(worker, tuple(holds), lease)), wire.Ids)
        return set(found.ids)

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        if not outcomes:
            return []
        body = _encode(wire.Outcomes(tuple(outcomes)))
        if len(body) > BIGGEST and len(outcomes) > 1:  # each outcome stands for itself, so they may go in parts
            half = len(outcomes) // 2
            return [*await self.settle(outcomes[:half]), *await self.settle(outcomes[half:])]
        return list((await self._call("settle", body, wire.AllSettled)).settled)

    async def settle_claim(self, outcomes: Sequence[Outcome], ask: Claim) -> tuple[list[Settled], Claimed]:
        """Both in one trip, unless what is to be settled is very large."""
        message = wire.SettleClaim(tuple(outcomes), wire.claim_call(ask))
        body = _encode(message)
        if len(body) > BIGGEST:
            return await self.settle(outcomes), await self.claim(ask)
        both = await self._call("settle_claim", body, wire.SettledClaimed)
        return list(both.settled), both.claimed

    # --- looking

    async def get(self, ids: Sequence[str]) -> list[Record | None]:
        if not ids:
            return []
        return list((await self._call("get", _encode(wire.Ids(tuple(ids))), wire.Records)).records)

    async def find(self, query: Query) -> Page:
        return await self._call("find", _encode(query), Page)

    async def stats(self) -> Stats:
        return await self._call("stats", b"{}", Stats)

    # --- tending

    async def set_limits(self, limits: Sequence[Limit]) -> None:
        await self._call("set_limits", _encode(wire.Limits(tuple(limits))), wire.Nothing)

    async def prune(self, limit: int) -> int:
        return (await self._call("prune", _encode(wire.Prune(limit)), wire.Number)).number

    async def watch(self, topics: Sequence[str], timeout: float) -> set[str]:
        if not topics:
            await asyncio.sleep(timeout)
            return set()
        asked = min(timeout, defaults.WATCH)
        found = await self._call("watch", _encode(wire.Watch(tuple(topics), asked)), wire.Topics, wait=asked)
        return set(found.topics)


def _refusal(status: int, content: bytes, place: str) -> Exception:
    """The error the server answered, as the class it was there."""
    try:
        problem = msgspec.json.decode(content, type=wire.Problem)
    except msgspec.MsgspecError:
        problem = None
    if problem is None or problem.error not in wire.WORDS:
        said = problem.message if problem is not None else content[:200].decode(errors="replace")
        kind = StorageUnavailable if status in (429, 502, 503, 504) else StorageError
        return kind(f"{place} answered {status}: {said}")
    return wire.error_of(problem)


__all__: list[Any] = ["HttpStorage"]
