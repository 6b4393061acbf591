"""Names and ids as one part of the path of a URL."""

from __future__ import annotations

from urllib.parse import quote


def path_part(name: str) -> str:
    """The name as a part of a path. "." and ".." get a space in front, because browsers and proxies remove them from a
    path, even percent-encoded; the server removes the space."""
    return f"%20{name}" if name in (".", "..") else quote(name, safe="")
