"""What a URL of this storage says: our options, and what libpq is given. Wrong ones are told before anything connects.

Without it a misspelt option would be a connection that fails on the first call, or one that is silently ignored.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import psycopg
from msgspec import Struct
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from treadle.core.redaction import shown
from treadle.errors import BadUrl

SCHEMA: Final = "treadle"
POOL: Final = 5  # connections: a worker's pumps, its heartbeat, and somebody who looks
TIMEOUT: Final = 15.0  # s for the answer to one call
OURS: Final = ("schema", "pool", "timeout", "prepare", "listen")

# A peer that fell silent is found out by the kernel too, also while we only listen.
QUIET: Final = {
    "connect_timeout": 5,
    "tcp_user_timeout": 10_000,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "application_name": "treadle",
}

# Whatever the URL, the environment, the role or the database say: a job's text is UTF-8 on every connection of ours.
OUR_WAY: Final = {"client_encoding": "UTF8"}


class Address(Struct, frozen=True):
    """Where the server is, and how we behave there.

    conninfo   what libpq connects with
    ear        the same for the connection that listens; None: no listening
    shown      the URL without its password, for messages
    schema     the schema our tables live in
    pool       connections at most, besides the one that listens
    timeout    s for the answer to one call
    prepare    whether statements are prepared; None: where the server's session is ours alone, not behind a pooler
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
    words = parse_qsl(query, keep_blank_values=True)
    ours = {name: value for name, value in words if name in OURS}
    others = [(name, value) for name, value in words if name not in OURS]
    known = shown(url)
    try:
        # libpq reads %20, and not the + that urlencode would write for a space
        told = conninfo_to_dict(place + ("?" + urlencode(others, quote_via=quote) if others else ""))
    except psycopg.Error as error:
        # libpq quotes what it could not read, which may be a part of the password
        said = re.sub(
            r'"[^"]*"', lambda part: part[0] if part[0][1:-1] in dict(others) else '"..."', str(error).strip()
        )
        raise BadUrl(f"{said} (ours are {', '.join(OURS)}), found {known!r}") from None
    words_of = {**QUIET, **told, **OUR_WAY}
    there: dict[str, str] = {name: str(value) for name, value in words_of.items() if value is not None}
    ports = [port for port in there.get("port", "").split(",") if port]  # of several hosts some may name none
    if not all(port.isdecimal() and 0 < int(port) < 65_536 for port in ports):
        raise BadUrl(f"port: expected a number from 1 to 65,535, found {known!r}")
    prepare = _one_of(ours, "prepare", ("auto", "on", "off"), known)
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
        found = float(ours.get(name, default))
    except ValueError:
        found = float("nan")
    if not least <= found <= most or (name == "pool" and found != int(found)):
        raise BadUrl(f"{name}: expected a number from {least} to {most:,}, found {ours[name]!r} in {known!r}")
    return found


def _one_of(ours: dict[str, str], name: str, allowed: tuple[str, ...], known: str) -> str:
    found = ours.get(name, allowed[0])
    if found not in allowed:
        raise BadUrl(f"{name}: expected {', '.join(allowed[:-1])} or {allowed[-1]}, found {found!r} in {known!r}")
    return found


def _notifier(listen: str, there: dict[str, str], known: str) -> str | None:
    """The connection that listens may go another way: past the pooler that the others use."""
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
