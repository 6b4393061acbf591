"""Defaults from the environment and from the program's folder: the storage URL and the tokens."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from treadle.core.errors import BadUrl
from treadle.core.file_urls import url_of


def storage_url(url: str | None, beside: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """The URL to use: `url`, otherwise TREADLE_URL, otherwise `treadle.db` in the folder of the file `beside`, or in
    the current folder. Raises BadUrl."""
    if url is not None:
        if not isinstance(url, str):
            raise BadUrl(f"expected a URL such as 'sqlite:///jobs.db', found {url!r}")
        return plain_url(url)
    named = environment.get("TREADLE_URL")
    if named:
        return plain_url(named)
    place = Path(beside).resolve().parent if beside and Path(beside).is_file() else Path.cwd()
    return url_of(place / "treadle.db")


def plain_url(url: str) -> str:
    """The URL with the scheme that we use: without a driver of SQLAlchemy, and for Valkey that of Redis."""
    scheme, colon, rest = url.partition(":")
    kind, plus, driver = scheme.lower().partition("+")
    if plus and kind in ("sqlite", "postgresql", "postgres"):
        scheme = kind
    elif kind in ("valkey", "valkeys"):
        scheme = kind.replace("valkey", "redis") + plus + driver
    return scheme + colon + rest


def token(environment: Mapping[str, str] = os.environ) -> str | None:
    """The access token for a server, from TREADLE_TOKEN: process lists and logged URLs do not show it."""
    return environment.get("TREADLE_TOKEN") or None


def store_token(environment: Mapping[str, str] = os.environ) -> str | None:
    """The access token for a blob store whose origin is not that of the queue, from TREADLE_STORE_TOKEN."""
    return environment.get("TREADLE_STORE_TOKEN") or None


def caller_file(depth: int = 2) -> str | None:
    """The file of the code that called our caller; None if there is none, as at a prompt."""
    frame = sys._getframe(depth)
    name: str | None = frame.f_globals.get("__file__")
    return name
