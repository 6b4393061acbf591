"""Makes storages from URLs (`connect`) and from ports (`compose`). Storages are imported here and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qsl, urlencode, urlsplit

from treadle.core import clock, file_urls
from treadle.core.config import plain_url
from treadle.core.errors import BadUrl
from treadle.core.redaction import shown
from treadle.ports import Ports
from treadle.storage.contract import Storage

KNOWN = (
    "sqlite:///file.db",
    "postgresql://host/database",
    "redis://host:6379/0",
    "http://host:7373",
    "memory://",
)

REDIS = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")


def connect(url: str, *, now: clock.Clock | None = None, token: str | None = None) -> Storage:
    """Return the storage that a URL names, not opened yet. Raises BadUrl.

    sqlite:///relative.db, sqlite:////absolute.db, `?` and `%` in a path as %3F and %25; ?synchronous=full (default) |
        normal; ?shared=true: the file also has tables of your own, for transactions that span both
    postgresql://user@host:5432/database; ?schema=treadle, pool=5, timeout=15, prepare=on | off,
        listen=on | off | host:port
    redis://host:6379/0, rediss://, unix://; Valkey, also as valkey:// and valkeys://; ?ns=name separates programs that
        share a server, ?shards=4 spreads one namespace over the nodes of a cluster
    redis+sentinel://host:26379,host:26379/service, redis+cluster://host:6379,host:6379; rediss+... for TLS
    http://host:7373, https://: a Treadle server; pass its token as `token` or ?token=...; ?ca=file.pem,
        ?max_answer=BYTES
    memory://

    A driver of SQLAlchemy, as in postgresql+asyncpg://, is ignored: Treadle uses its own.
    """
    url = plain_url(url)
    if (file := file_urls.read(url)) is not None:
        return _sqlite(url, *file, now)
    try:
        parts = urlsplit(url)
    except ValueError:  # its text may contain a part of the password
        raise BadUrl(f"expected one of {', '.join(KNOWN)}, found {shown(url)!r}, which is no URL") from None
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.scheme == "memory":
        from treadle.storage.memory import MemoryStorage

        _no_others(url, options)
        return MemoryStorage(now or clock.wall)
    if parts.scheme in REDIS:
        return _redis(url, now)
    if parts.scheme in ("http", "https"):
        with _needs("an HTTP storage needs its client: pip install 'aiohttp>=3.11'", "aiohttp"):
            from treadle.storage.http import HttpStorage
        return HttpStorage(url, token=token)
    if parts.scheme in ("postgresql", "postgres"):
        # If libpq is missing, the error names no module.
        with _needs("a PostgreSQL storage needs its driver: pip install 'psycopg[binary]>=3.2'", "psycopg", ""):
            from treadle.storage.postgres import PostgresStorage
        return PostgresStorage(url, now=now)
    if parts.scheme == file_urls.SCHEME:
        raise BadUrl(f"expected sqlite:///file.db (three slashes; four for an absolute path), found {shown(url)!r}")
    is_path = url and not parts.scheme and shown(url) == url
    meant = f"; the SQLite file of this name is {file_urls.url_of(url)!r}" if is_path else ""
    raise BadUrl(f"expected one of {', '.join(KNOWN)}, found {shown(url)!r}{meant}")


def compose(ports: Ports, *, now: clock.Clock | None = None, namespace: str | None = None) -> Storage:
    """Return the storage made of a queue, a pub/sub and a store, not opened yet. Raises BadOption.

    namespace  prefix of all keys and channels; default "treadle"
    """
    from treadle.storage.composed import ComposedStorage

    return ComposedStorage(ports, now=now, namespace="treadle" if namespace is None else namespace)


@contextmanager
def _needs(text: str, *packages: str) -> Iterator[None]:
    """Raise BadUrl with this text if the import in the block fails because one of these packages is missing."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in packages:
            raise
        raise BadUrl(f"{text} ({error})") from error


def _sqlite(url: str, path: str, options: dict[str, str], now: clock.Clock | None) -> Storage:
    from treadle.storage.sqlite import SqliteStorage

    if "\0" in path:
        raise BadUrl(f"expected the path of a file, found a null character in {shown(url)!r}")
    synchronous = options.pop("synchronous", "full")
    if synchronous not in ("full", "normal"):
        raise BadUrl(f"synchronous: expected full or normal, found {synchronous!r} in {shown(url)!r}")
    shared = options.pop("shared", "false")
    if shared not in ("true", "false"):
        raise BadUrl(f"shared: expected true or false, found {shared!r} in {shown(url)!r}")
    _no_others(url, options, "synchronous or shared", "; a `?` that belongs to the file name is written %3F")
    return SqliteStorage(path, now=now or clock.wall, synchronous=synchronous, shared=shared == "true")


def _redis(url: str, now: clock.Clock | None) -> Storage:
    with _needs("a Redis storage needs its driver: pip install 'redis[hiredis]>=5.2'", "redis", "hiredis"):
        from treadle.storage.redis import RedisStorage, ShardedRedis
    place, _, query = url.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    ns = options.pop("ns", "default")
    shards = options.pop("shards", "1")
    if not shards.isascii() or not shards.isdigit() or not int(shards):
        raise BadUrl(f"shards: expected a number of at least 1, found {shards!r}")
    server = f"{place}?{urlencode(options)}" if options else place
    if shards == "1":
        return RedisStorage(server, ns=ns, now=now)
    return ShardedRedis(server, ns=ns, shards=int(shards), now=now)


def _no_others(url: str, options: dict[str, str], known: str = "none", advice: str = "") -> None:
    if options:
        names = ", ".join(options)
        raise BadUrl(f"{names}: no such option for this storage (expected {known}), found in {shown(url)!r}{advice}")
