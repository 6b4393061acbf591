"""What the environment and the place of the program say: where jobs live if nobody says so.

Without it the first program of a newcomer would need an address.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from treadle.core import argument_names
from treadle.errors import BadUrl


def storage_url(given: str | None, beside: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """The URL to use: the one given, else TREADLE_URL, else `treadle.db` beside the file that makes the app."""
    if given is not None:
        if not isinstance(given, str):
            raise BadUrl(f"expected a URL such as 'sqlite:///jobs.db', found {given!r}")
        return given
    named = environment.get("TREADLE_URL")
    if named:
        return named
    place = Path(beside).resolve().parent if beside and Path(beside).is_file() else Path.cwd()
    return f"sqlite:///{place / 'treadle.db'}"


def token(environment: Mapping[str, str] = os.environ) -> str | None:
    """The right to use a server, as the environment has it; out of sight of process lists and logs of URLs."""
    return environment.get("TREADLE_TOKEN") or None


def store_token(environment: Mapping[str, str] = os.environ) -> str | None:
    """The right to use a store for blobs of another origin than its queue."""
    return environment.get("TREADLE_STORE_TOKEN") or None


def caller_file(depth: int = 2) -> str | None:
    """The file of the code that called our caller; None where there is none, as at a prompt."""
    frame = sys._getframe(depth)
    while frame.f_back is not None and frame.f_globals.get("__name__") == argument_names.__name__:  # it checks the call
        frame = frame.f_back
    name: str | None = frame.f_globals.get("__file__")
    return name
