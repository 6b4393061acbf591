"""URLs of SQLite files, `sqlite:///relative.db` and `sqlite:////absolute.db`.

A path has no fragment: `#` is part of it. Bytes that are not UTF-8 survive, so that two files never share a URL.
"""

from __future__ import annotations

import os
import re
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, quote, unquote_to_bytes

SCHEME: Final = "sqlite"
_ENCODED: Final = re.compile("[%?#\x00-\x1f\x7f\ud800-\udfff]")
_DROPPED: Final = str.maketrans("", "", "\t\r\n")  # a line break at the end of a variable or of a secret's file


class FileUrl(NamedTuple):
    path: str
    options: dict[str, str]


def url_of(path: str | os.PathLike[str]) -> str:
    """The URL of a file, readable: only what would mean something else in a URL is percent-encoded."""
    return f"{SCHEME}:///{_ENCODED.sub(lambda found: quote(os.fsencode(found[0]), safe=''), os.fspath(path))}"


def read(url: str | None) -> FileUrl | None:
    """The file that a URL names, relative to the current directory, and the options; None for any other URL."""
    scheme, _, rest = (url or "").translate(_DROPPED).lstrip().partition("://")
    if scheme.lower() != SCHEME or not rest.startswith("/"):
        return None
    path, _, query = rest[1:].partition("?")
    name = os.fsdecode(unquote_to_bytes(os.fsencode(path)))
    return FileUrl(name, dict(parse_qsl(query, keep_blank_values=True))) if name else None
