"""Reads the URL of an outbox: which database it is, and how this process connects to it.

URLs of SQLAlchemy name a driver (`postgresql+asyncpg://`); that part is ignored, because the relay uses its own driver.
"""

from __future__ import annotations

import os
import re
from typing import Any, Final, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Struct

from treadle.core import file_urls
from treadle.core.errors import BadUrl
from treadle.core.redaction import shown

Dialect = Literal["postgresql", "mysql", "sqlite"]

SCHEMES: Final[dict[str, Dialect]] = {
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "mysql": "mysql",
    "mariadb": "mysql",
    "sqlite": "sqlite",
}
KNOWN: Final = "postgresql://host/database, mysql://host/database, mariadb://host/database or sqlite:///file.db"
WHICH: Final = ("ns", "schema", "db")  # options of a storage URL that name another storage
CONNECT: Final = 5  # s to connect
ANSWER: Final = 15  # s for the answer to one statement
NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,62}")


class Address(Struct, frozen=True):
    """A database with an outbox.

    shown   the URL without its password, for messages
    target  libpq's connection string, the path of the file, or the arguments of a MySQL driver
    schema  PostgreSQL: the schema of the tables; None: the first of the search path
    """

    dialect: Dialect
    shown: str
    target: Any
    schema: str | None = None

    @property
    def database(self) -> str:
        """The database in words, for messages."""
        return f"the outbox database {self.shown}"


def read(url: object, schema: str | None = None) -> Address:
    """Raises BadUrl."""
    if not isinstance(url, str):
        raise BadUrl(f"outbox: expected a URL such as {KNOWN}, found {url!r}")
    known = shown(url)
    try:
        parts = urlsplit(url)
        scheme, driver, _ = parts.scheme.partition("+")
        dialect = SCHEMES.get(scheme)
        if dialect is None:
            raise BadUrl(f"outbox: expected {KNOWN}, found {known!r}")
        plain = url.replace(f"{parts.scheme}:", f"{scheme}:", 1) if driver else url
        if schema is not None and (dialect != "postgresql" or not NAME.fullmatch(schema)):
            raise BadUrl(f"schema: expected the name of a PostgreSQL schema, found {schema!r} for {known!r}")
        if dialect == "postgresql":
            return Address(dialect, known, _conninfo(plain, known), schema)
        return Address(dialect, known, _path(plain, known) if dialect == "sqlite" else _arguments(plain, known))
    except ValueError as error:  # urlsplit and the port raise it; its text may contain a part of the password
        if isinstance(error, BadUrl):
            raise
        raise BadUrl(f"outbox: expected {KNOWN}, found {known!r}, which is no URL") from None


def place_of(storage: str) -> str:
    """A storage URL as far as it says which storage it is, without user and password. A file has its whole path."""
    if (file := file_urls.read(storage)) is not None:
        return file_urls.url_of(os.path.abspath(file.path))
    known = shown(storage)
    try:
        parts = urlsplit(known)
    except ValueError:
        return known
    which = [f"{name}={value}" for name, value in parse_qsl(parts.query) if name in WHICH]
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}" + ("?" + "&".join(which) if which else "")


def _conninfo(url: str, known: str) -> str:
    try:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict, make_conninfo
    except ImportError as error:
        raise BadUrl(f"an outbox in PostgreSQL needs psycopg: pip install 'psycopg[binary]>=3.2' ({error})") from error
    try:
        options = conninfo_to_dict(url)
    except psycopg.Error:
        raise BadUrl(f"outbox: libpq cannot read {known!r}") from None
    ports = [port for port in str(options.get("port") or "").split(",") if port]
    if not all(port.isdecimal() and 0 < int(port) < 65_536 for port in ports):
        raise BadUrl(f"outbox: expected a port from 1 to 65,535, found {known!r}")
    ours: dict[str, str | int] = {
        "connect_timeout": CONNECT,
        "application_name": "treadle outbox",
        "tcp_user_timeout": 10_000,
    }
    return make_conninfo("", **{**ours, **{name: str(value) for name, value in options.items() if value is not None}})


def _path(url: str, known: str) -> str:
    file = file_urls.read(url)
    if file is None or file.path == ":memory:":
        raise BadUrl(f"outbox: expected sqlite:///file.db (three slashes; four for an absolute path), found {known!r}")
    return file.path


def _arguments(url: str, known: str) -> dict[str, Any]:
    parts = urlsplit(url)
    database = unquote(parts.path.removeprefix("/"))
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    socket = options.pop("unix_socket", None)
    others = options.keys() - {"charset"}
    if others:
        raise BadUrl(f"{', '.join(sorted(others))}: no such option for an outbox (unix_socket, charset): {known!r}")
    if not database or "/" in database:
        raise BadUrl(f"outbox: expected mysql://user@host:3306/database, found {known!r}")
    place: dict[str, Any] = {"unix_socket": socket} if socket else {"port": parts.port or 3306}
    return {
        **place,
        "host": parts.hostname or "127.0.0.1",
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "database": database,
    }
