"""The built files of the dashboard, read once: the shell, and assets whose names contain a hash of their content."""

from __future__ import annotations

import functools
import html
from importlib import resources
from typing import Final
from urllib.parse import quote

from msgspec import Struct

from treadle.core.errors import BadOption

TYPES: Final = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".txt": "text/plain; charset=utf-8",
}
BASE: Final = '<base href="/dashboard/">'  # what the build writes, for a server without a prefix
API: Final = '<meta name="treadle-api" content="/v1/">'


class Asset(Struct, frozen=True):
    """One file: its media type, its bytes, and the same compressed by gzip, or None."""

    media: str
    plain: bytes
    packed: bytes | None


class Files(Struct, frozen=True):
    """The files of one build: the page of a server without a prefix, and the other files by name."""

    page: str
    assets: dict[str, Asset]

    def shell(self, root: str) -> str:
        """The page for a server that is mounted at `root`, which may be the choice of a client."""
        path = root.strip("/")  # two slashes at its beginning would name another host
        base = html.escape(quote(f"/{path}", safe="/~:@!$&()*+,;=")) if path else ""
        text = self.page.replace(BASE, BASE.replace('"/', f'"{base}/'), 1)
        return text.replace(API, API.replace('"/', f'"{base}/'), 1)


@functools.cache
def files() -> Files:
    """The files of the package. Raises BadOption if they are missing, as in a checkout without a build."""
    static = resources.files("treadle.server.dashboard").joinpath("static")
    page = static.joinpath("index.html")
    if not page.is_file():
        raise BadOption("dashboard", "its files are missing in this installation; in a checkout: python3 dev.py ui")
    shell = page.read_text("utf-8")
    for line in (BASE, API):
        if line not in shell:
            raise BadOption("dashboard", f"expected {line} in static/index.html; build it again: python3 dev.py ui")
    raw = {file.name: file.read_bytes() for file in static.joinpath("assets").iterdir() if file.is_file()}
    assets = {
        name: Asset(TYPES.get(f".{name.rpartition('.')[2]}", "application/octet-stream"), data, raw.get(f"{name}.gz"))
        for name, data in raw.items()
        if not name.endswith(".gz")
    }
    return Files(shell, assets)
