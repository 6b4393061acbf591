"""Where jobs live. `connect` is the only place that knows which storages there are."""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote, urlsplit

from treadle import clock
from treadle.errors import BadUrl
from treadle.storage.contract import Storage

KNOWN = ("sqlite:///file.db", "memory://")


def connect(url: str, *, now: clock.Clock | None = None) -> Storage:
    """The storage a URL names; nothing is opened yet. Raises BadUrl.

    sqlite:///relative.db, sqlite:////absolute.db; ?synchronous=full (default) | normal
    memory://
    """
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.scheme == "memory":
        from treadle.storage.memory import MemoryStorage

        _no_others(url, options)
        return MemoryStorage(now or clock.wall)
    if parts.scheme == "sqlite":
        from treadle.storage.sqlite import SqliteStorage

        path = unquote(parts.path.removeprefix("/"))
        if parts.netloc or not path:
            raise BadUrl(f"expected sqlite:///file.db (three slashes; four for an absolute path), found {url!r}")
        synchronous = options.pop("synchronous", "full")
        if synchronous not in ("full", "normal"):
            raise BadUrl(f"synchronous: expected full or normal, found {synchronous!r} in {url!r}")
        _no_others(url, options)
        return SqliteStorage(path, now=now or clock.wall, synchronous=synchronous)
    raise BadUrl(f"expected one of {', '.join(KNOWN)}, found {url!r}")


def _no_others(url: str, options: dict[str, str]) -> None:
    if options:
        raise BadUrl(f"{', '.join(options)}: no such option for this storage, found in {url!r}")
