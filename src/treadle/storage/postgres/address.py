"""Reads the URL of this storage: our options, and the parameters for libpq.

A wrong or misspelt option raises BadUrl before anything connects.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import psycopg
from msgspec import Struct
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from treadle.core.errors import BadUrl
from treadle.core.redaction import shown

SCHEMA: Final = "treadle"
POOL: Final = 5  # connections: the claims and settles of a worker, its heartbeat, and one for queries
TIMEOUT: Final = 15.0  # s for the result of one call
OURS: Final = ("schema", "pool", "timeout", "prepare", "listen")

# The kernel detects a dead peer too, even while a connection only listens.
QUIET: Final = {
    "connect_timeout": 5,
    "tcp_user_timeout": 10_000,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "application_name": "treadle",
}

# Takes precedence over the URL, the environment, the role and the database: job texts are UTF-8 on all our connections.
OUR_WAY: Final = {"client_encoding": "UTF8"}


class Address(Struct, frozen=True):
    """The server, and how we use it.

    conninfo   the connection string for libpq
    notifier   the same for the connection that listens; None: no listening
    shown      the URL without its password, for messages
    schema     the schema of our tables
    pool       the most connections, not counting the one that listens
    timeout    s for the result of one call
    prepare    whether statements are prepared; None: only if the session is ours alone, not behind a pooler
    """

    conninfo: str
    notifier: str | None
    shown: str
    schema: str = SCHEMA
    pool: int = POOL
    timeout: float = TIMEOUT
    prepare: bool | None = None


def read(url: str) -> Address:
    """Raises BadUrl."""
    place, _, query = url.partition("?")
    pairs = parse_qsl(query, keep_blank_values=True)
    ours = {name: value for name, value in pairs if name in OURS}
    others = [(name, value) for name, value in pairs if name not in OURS]
    known = shown(url)
    try:
        # libpq decodes %20, but not the + that urlencode would write for a space
        of_url = conninfo_to_dict(place + ("?" + urlencode(others, quote_via=quote) if others else ""))
    except psycopg.Error as error:
        # libpq quotes the part that it could not parse, which may be part of the password
        problem = re.sub(
            r'"[^"]*"', lambda part: part[0] if part[0][1:-1] in dict(others) else '"..."', str(error).strip()
        )
        raise BadUrl(f"{problem} (options of Treadle: {', '.join(OURS)}), found {known!r}") from None
    words_of = {**QUIET, **of_url, **OUR_WAY}
    there: dict[str, str] = {name: str(value) for name, value in words_of.items() if value is not None}
    ports = [port for port in there.get("port", "").split(",") if port]  # with several hosts some ports may be missing
    if not all(port.isdecimal() and 0 < int(port) < 65_536 for port in ports):
        raise BadUrl(f"port: expected a number from 1 to 65,535, found {known!r}")
    prepare = ours.get("prepare", "auto")
    if prepare not in ("auto", "on", "off"):
        raise BadUrl(f"prepare: expected auto, on or off, found {prepare!r} in {known!r}")
    return Address(
        conninfo=make_conninfo("", **there),
        notifier=_notifier(ours.get("listen", "on"), there, known),
        shown=known,
        schema=_schema(ours.get("schema", SCHEMA), known),
        pool=int(_number(ours, "pool", POOL, 1, 1_000, known)),
        timeout=_number(ours, "timeout", TIMEOUT, 1, 3_600, known),
        prepare=None if prepare == "auto" else prepare == "on",
    )


def _schema(name: str, known: str) -> str:
    if not name or "\0" in name or len(name.encode()) > 63 or name.startswith("pg_"):
        raise BadUrl(f"schema: expected a name of 1 to 63 bytes that is not PostgreSQL's own (pg_...), found {known!r}")
    return name


def _number(ours: dict[str, str], name: str, default: float, least: float, most: float, known: str) -> float:
    try:
        number = float(ours.get(name, default))
    except ValueError:
        number = float("nan")
    if not least <= number <= most or (name == "pool" and number != int(number)):
        raise BadUrl(f"{name}: expected a number from {least} to {most:,}, found {ours[name]!r} in {known!r}")
    return number


def _notifier(listen: str, there: dict[str, str], known: str) -> str | None:
    """The connection string of the listener, which may bypass the pooler that the other connections use."""
    if listen in ("on", "off"):
        return make_conninfo("", **there) if listen == "on" else None
    try:
        parts = urlsplit(f"//{listen}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or parts.path or parts.query:
        raise BadUrl(f"listen: expected on, off or host:port of the server itself, found {listen!r} in {known!r}")
    direct = {name: value for name, value in there.items() if name != "hostaddr"}
    return make_conninfo("", **{**direct, "host": host, "port": str(port or 5432)})
