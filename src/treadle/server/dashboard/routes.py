"""Serves the dashboard's page and files under /dashboard/. They hold no data, so they need no token."""

from __future__ import annotations

import functools
import html
from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from msgspec import Struct
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from treadle.core.errors import BadOption
from treadle.server.app import ProtocolRoutes
from treadle.server.origins import is_origin
from treadle.server.settings import Settings

if TYPE_CHECKING:
    from treadle.app.core import AppCore
    from treadle.server.longpoll import LongPoll

OPEN_PATHS: Final = ("/dashboard", "/dashboard/")  # the second one with all paths below it
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'self'; form-action 'self'; frame-ancestors "
)
FOREVER: Final = "public, max-age=31536000, immutable"  # the name of an asset changes with its content


def dashboard_routes(frame_ancestors: Sequence[str] = ()) -> ProtocolRoutes:
    """The routes of the dashboard, for `make_site`. They need its API.

    frame_ancestors  origins whose pages may show the dashboard in a frame; "'self'" is the dashboard's own. None by
                     default. Raises BadOption
    """
    for origin in frame_ancestors:
        if origin != "'self'" and not is_origin(origin):
            raise BadOption("frame_ancestors", f"expected \"'self'\" or scheme://host[:port], found {origin!r}")
    build = files()
    headers = {
        "Content-Security-Policy": POLICY + (" ".join(frame_ancestors) or "'none'"),
        "Cross-Origin-Opener-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }

    async def page(request: Request) -> Response:
        shell = build.shell(request.scope.get("root_path", ""))
        return Response(shell, media_type="text/html", headers=headers)

    async def asset(request: Request) -> Response:
        one = build.assets.get(request.path_params["name"])
        if one is None:
            raise HTTPException(404)
        body, more = one.plain, {"Cache-Control": FOREVER, "Vary": "Accept-Encoding"}
        if one.packed is not None and accepts_gzip(request.headers.get("accept-encoding", "")):
            body, more["Content-Encoding"] = one.packed, "gzip"
        return Response(body, media_type=one.media, headers=more)

    def made(core: AppCore, settings: Settings, waiting: LongPoll) -> list[BaseRoute]:
        return [
            Route("/", to_page),
            Route("/dashboard", to_page),
            Route("/dashboard/assets/{name}", asset),
            Route("/dashboard/{path:path}", page),
        ]

    return made


async def to_page(request: Request) -> Response:
    """A redirect to the page, relative to the request: an absolute one would name the host of the Host header."""
    below = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    folder = request.scope.get("root_path", "").rpartition("/")[2] + "/" if below == "" else ""
    return Response(status_code=307, headers={"Location": f"{folder}dashboard/", "Cache-Control": "no-store"})


def accepts_gzip(header: str) -> bool:
    """Whether a request with this Accept-Encoding accepts gzip: it is named, and its weight is not 0."""
    for part in header.lower().split(","):
        coding, _, weight = part.partition(";")
        if coding.strip() in ("gzip", "*"):
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


# --- the built files
#
# The built files of the dashboard, read once: the shell, and assets whose names contain a hash of their content.


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
