"""Names and ids as one part of the path of a URL."""

from __future__ import annotations

from urllib.parse import quote


def path_part(name: str) -> str:
    """The name as a part of a path. "." and ".." get a space in front, which the server removes: browsers and proxies
    take both out of a path, also in percent-encoded form."""
    return f"%20{name}" if name in (".", "..") else quote(name, safe="")
