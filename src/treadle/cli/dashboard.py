"""`treadle dashboard`: serves the dashboard on this machine and opens it in a browser."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from treadle.cli.options import optional_app, storage_url
from treadle.cli.output import note
from treadle.cli.protocols import ServerWorkers
from treadle.cli.server import run_server
from treadle.cli.target import Target

if TYPE_CHECKING:
    from treadle.server import Serving
    from treadle.server.auth.link import Link

TRIES: Final = 100  # ports to try from 7373, when other servers of this machine have the first ones
SCOPES: Final = ("read", "operate", "enqueue")
# The options of `treadle server` that a server for one person's browser does not have.
UNUSED: Final = {
    "api": True,
    **dict.fromkeys(("open_", "no_docs", "pass_texts"), False),
    **dict.fromkeys(("protocols", "hosts", "origins", "proxies", "redact", "reveal"), ()),
    **dict.fromkeys(("rate", "requests", "connections", "max_body", "timeout", "tls_cert", "tls_key"), None),
}
DISPLAYS: Final = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")


@click.command()
@optional_app
@storage_url
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    envvar="TREADLE_PORT",
    help="Port to listen on; 0 picks a free one. [default: the first free one from 7373]",
)
@click.option(
    "--tokens",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="TREADLE_TOKENS",
    metavar="FILE",
    help="File of tokens, written by `treadle token`: other users of this machine then need one.",
)
@click.option(
    "--open/--no-open", "open_browser", default=True, show_default=True, help="Open the dashboard in a browser."
)
@click.option("--quiet", is_flag=True, help="Do not log each request.")
def dashboard(app: str | None, url: str | None, tokens: Path | None, open_browser: bool, **typed: Any) -> int:
    """Show the jobs of MODULE:APP, or of a storage, in a browser on this machine.

    It listens on 127.0.0.1, runs no jobs, and ends with Ctrl-C. With MODULE:APP the dashboard knows the tasks and their
    parameters. With --tokens it prints a link that signs one browser in. For other machines use `treadle server
    --dashboard`.
    """
    from treadle.server.auth.link import Link

    link = Link(SCOPES) if tokens is not None else None
    options = {
        **UNUSED,
        **typed,
        "host": "127.0.0.1",
        "tokens": tokens,
        "dashboard": True,
        "tries": TRIES,
        "make": app is not None,  # a storage that is only looked at is not created
        "waits": False,  # a person typed the URL, and should see at once that it is wrong
        "link": link,
        "app": app,
    }
    return run_server(Target(url, app), options, lambda _, serving: Page(serving, link, open_browser))


class Page(ServerWorkers):
    """Prints the address and opens it in a browser; runs no worker."""

    def __init__(self, serving: Serving, link: Link | None, open_browser: bool) -> None:
        self._url, self._link, self._opens = f"{serving.url}/dashboard/", link, open_browser
        self._folder: Path | None = None

    async def __aenter__(self) -> None:
        url = self._url
        if self._link is not None:
            note(f"treadle: this link signs one browser in: {self._url}#k={self._link.secret}")
        if self._opens and has_browser():
            if self._link is not None:
                self._link.on_used = self._remove
                url = self._redirect(self._link)
            # A thread of its own, because some browsers return only when they are closed.
            threading.Thread(target=webbrowser.open, args=(url,), name="browser", daemon=True).start()

    async def __aexit__(self, *_: object) -> None:
        """The browser is the user's; only the file with the link is removed."""
        self._remove()

    def _redirect(self, link: Link) -> str:
        """The URL of a file that leads to the link. Other users of the machine see the arguments of the
        browser in the list of processes, and only this user can read the file."""
        self._folder = Path(tempfile.mkdtemp(prefix="treadle-"))
        file = self._folder / "dashboard.html"
        target = f"{self._url}#k={link.secret}"
        file.touch(0o600)
        file.write_text(
            f'<!doctype html><meta http-equiv="refresh" content="0;url={target}"><a href="{target}">Open</a>'
        )
        return file.as_uri()

    def _remove(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def has_browser() -> bool:
    """Whether a graphical browser can be opened. One in the terminal would hide the output of the command."""
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in DISPLAYS)
