"""Finds the server: at a fixed address, through Sentinels, or as the cluster node that has our slot.

After a fail-over, or when a slot moves, the next connection finds the new address. All keys of a storage have one hash
tag, so a storage needs only one node of a cluster. The driver's own cluster client is not used: it packs commands in
Python and repeats them by its own rules.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import AuthenticationError, RedisError
from redis.exceptions import ConnectionError as Broken

from treadle.core.errors import BadUrl
from treadle.core.redaction import shown

CONNECT: Final = 5.0  # seconds
PORT: Final = 6379
SENTINEL_PORT: Final = 26379

FILES: Final = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")
OPTIONS: Final = frozenset({"db", "client_name", *FILES, "ssl_password", "ssl_cert_reqs", "ssl_check_hostname"})
WATCHERS: Final = ("sentinel_username", "sentinel_password")

Kind = type[Connection | SSLConnection | UnixDomainSocketConnection]
Address = tuple[str, int]


@functools.cache
def _introduction() -> dict[str, Any]:
    """The name of the library of our connections in `CLIENT LIST`. By default the driver reads its own version from its
    metadata for each connection: 0.5 ms."""
    try:
        from redis.driver_info import DriverInfo
    except ImportError:  # an older driver
        return {"lib_name": "treadle", "lib_version": None}
    return {"driver_info": DriverInfo("treadle", lib_version=None)}


class ServerAddress:
    """A server at the address in its URL. Subclasses look their address up."""

    moves = False  # whether the server may be at another address later

    def __init__(self, url: str, kind: Kind, options: dict[str, Any]) -> None:
        self.where = shown(url)
        self._kind, self._options = kind, options

    async def connect(self) -> Any:
        """A new connection to the current server."""
        return await self._to(self._options)

    def moved(self, to: Address) -> None:
        """Called when a node has redirected us to the node that has our keys."""

    def lost(self) -> None:
        """Called when the known server is unreachable or no longer serves our keys."""

    async def _to(self, options: dict[str, Any]) -> Any:
        connection: Any = self._kind(
            **options,
            **_introduction(),
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=None,
            socket_connect_timeout=CONNECT,
        )
        try:
            async with asyncio.timeout(CONNECT):
                await connection.connect()
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection

    async def _at(self, address: Address) -> Any:
        return await self._to({**self._options, "host": address[0], "port": address[1]})

    async def _ask(self, options: dict[str, Any], address: Address, *command: Any) -> Any:
        """The answer of the server at this address to one command."""
        connection = await self._to({**options, "host": address[0], "port": address[1]})
        try:
            async with asyncio.timeout(CONNECT):
                return await _sent(connection, *command)
        finally:
            await connection.disconnect(nowait=True)

    async def _search(
        self, servers: Sequence[Address], look: Callable[[Address], Awaitable[Address | None]], lacks: str, failure: str
    ) -> Address:
        """The address that one of these servers knows. If all refuse our credentials, raises AuthenticationError,
        because waiting would not help."""
        reasons, refused = list[str](), True
        for server in servers:
            try:
                address = await look(server)
            except (RedisError, OSError) as error:
                refused &= isinstance(error, AuthenticationError)
                reasons.append(f"{server[0]}:{server[1]}: {str(error) or type(error).__name__}")
                continue
            if address is not None:
                return address
            refused = False
            reasons.append(f"{server[0]}:{server[1]} {lacks}")
        raise (AuthenticationError if refused else Broken)(f"{failure}: " + "; ".join(reasons))


class Watched(ServerAddress):
    """The primary of a service, found through Sentinels."""

    moves = True

    def __init__(
        self, url: str, kind: Kind, options: dict[str, Any], watchers: Sequence[Address], service: str
    ) -> None:
        own = {name.partition("_")[2]: options.pop(name) for name in WATCHERS if name in options}
        super().__init__(url, kind, options)
        self._watchers, self._service = list(watchers), service
        safe = {name: value for name, value in options.items() if name.startswith("ssl_")}
        self._watcher_options = {**safe, **own}

    async def connect(self) -> Any:
        connection = await self._at(await self._find())
        try:
            async with asyncio.timeout(CONNECT):
                role = (await _sent(connection, "ROLE"))[0]
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        if role != b"master":  # the Sentinel does not know of a fail-over yet
            await connection.disconnect(nowait=True)
            raise Broken(f"the server that the Sentinels name is a {role.decode()}, not the primary")
        return connection

    async def _find(self) -> Address:
        lacks = f"does not know the service {self._service!r}"
        return await self._search(tuple(self._watchers), self._primary_of, lacks, "no Sentinel knows the primary")

    async def _primary_of(self, watcher: Address) -> Address | None:
        question = "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service
        address = await self._ask(self._watcher_options, watcher, *question)
        if not address:
            return None
        self._watchers.remove(watcher)
        self._watchers.insert(0, watcher)  # try this one first from now on
        return address[0].decode(), int(address[1])


class Clustered(ServerAddress):
    """The cluster node that has the slot of our hash tag."""

    moves = True

    def __init__(self, url: str, kind: Kind, options: dict[str, Any], nodes: Sequence[Address], tag: str) -> None:
        super().__init__(url, kind, options)
        self._nodes, self._named = list(nodes), tuple(nodes)
        self._slot = key_slot(tag.encode())
        self._owner: Address | None = None

    def moved(self, to: Address) -> None:
        self._owner = to

    def lost(self) -> None:
        self._owner = None

    async def connect(self) -> Any:
        if self._owner is None:
            self._owner = await self._find()
        try:
            return await self._at(self._owner)
        except (RedisError, OSError):
            self._owner = None
            raise

    async def _find(self) -> Address:
        nodes, lacks = tuple(dict.fromkeys((*self._nodes, *self._named))), f"knows no node that has slot {self._slot}"
        return await self._search(nodes, self._owner_of, lacks, "no node of the cluster knows which node has the keys")

    async def _owner_of(self, node: Address) -> Address | None:
        slots = await self._ask(self._options, node, "CLUSTER", "SLOTS")
        owners = [(_address(entry[2], node), entry[0] <= self._slot <= entry[1]) for entry in slots]
        if owners:
            self._nodes = [node, *(owner for owner, _ in owners if owner != node)]
        return next((owner for owner, ours in owners if ours), None)


def _address(entry: Sequence[Any], sender: Address) -> Address:
    """The address of a node. An entry without a host name is the node that sent it."""
    host = entry[0].decode() if entry[0] else ""
    return (host if host not in ("", "?") else sender[0]), int(entry[1])


async def _sent(connection: Any, *command: Any) -> Any:
    await connection.send_command(*command)
    return await connection.read_response(disable_decoding=True)


# --- URLs


def place_of(url: str, tag: str) -> ServerAddress:
    """The server that a URL names, for keys with this hash tag. Raises BadUrl."""
    parts = urlsplit(url)
    scheme, _, how = parts.scheme.partition("+")
    allowed = OPTIONS | (frozenset(WATCHERS) if how == "sentinel" else frozenset())
    others = sorted({name for name, _ in parse_qsl(parts.query, keep_blank_values=True)} - allowed)
    if others:
        known = "ns, shards, " + ", ".join(sorted(allowed))
        raise BadUrl(
            f"{', '.join(others)}: no such option for this storage (expected {known}), found in {shown(url)!r}"
        )
    if not how:
        return ServerAddress(url, *_read(url, url))
    credentials, _, where = parts.netloc.rpartition("@")
    hosts = _addresses(where, SENTINEL_PORT if how == "sentinel" else PORT, url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    watcher_options: dict[str, Any] = {name: query.pop(name) for name in WATCHERS if name in query}
    user = f"{credentials}@" if credentials else ""
    plain = f"{scheme}://{user}{where.split(',')[0]}{'?' if query else ''}{urlencode(query)}"
    kind, options = _read(plain, url)
    path = unquote(parts.path.strip("/"))
    if how == "sentinel":
        if not path or "/" in path:
            raise BadUrl(
                f"expected {parts.scheme}://host:port,host:port/service (the name that the Sentinels know), "
                f"found {shown(url)!r}"
            )
        return Watched(url, kind, {**options, **watcher_options}, hosts, path)
    if path not in ("", "0") or options.get("db"):
        raise BadUrl(f"a cluster has only the database 0, found {shown(url)!r}")
    return Clustered(url, kind, options, hosts, tag)


def _read(url: str, original: str) -> tuple[Kind, dict[str, Any]]:
    """The connection class and its arguments, as the driver reads them from a URL."""
    try:
        options: dict[str, Any] = dict(parse_url(url))
    except (ValueError, TypeError):
        # the driver's text may contain a part of the password if one of its characters is not percent-encoded
        wrong = "host, port or database cannot be parsed; percent-encode the characters :/?#[]@ of a password"
        raise BadUrl(f"{wrong}, found {shown(original)!r}") from None
    kind: Kind = options.pop("connection_class", Connection)
    return kind, options


def _addresses(text: str, port: int, url: str) -> list[Address]:
    addresses = []
    for part in text.split(","):
        try:
            parts = urlsplit(f"//{part}")
            if not parts.hostname:
                raise ValueError("a host is missing")
            addresses.append((parts.hostname, parts.port or port))
        except ValueError:
            raise BadUrl(f"expected host:port,host:port, found {shown(url)!r}") from None
    return addresses
