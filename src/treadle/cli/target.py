"""Where a command acts: the storage of --url, of the app of --app, of TREADLE_URL, or treadle.db right here.

Without it `treadle jobs list` in the wrong directory would make an empty database and show it.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

import click

from treadle.cli.output import UNREACHABLE, USAGE, Stop, note
from treadle.core.redaction import shown
from treadle.errors import OldRows, UnknownName
from treadle.storage.transfer import mark_of, words

if TYPE_CHECKING:
    from treadle.app import App

T = TypeVar("T")


class Target:
    """Where to act, as typed; opened when a command runs something in it."""

    def __init__(self, url: str | None, app: str | None) -> None:
        if url is not None and app is not None:
            raise click.UsageError("give --url or --app, not both")
        self._url, self._named = url, app
        self._app: App | None = None

    @property
    def app(self) -> App:
        """The app: the user's own, or one that only knows where jobs live."""
        if self._app is None:
            if self._named is not None:
                from treadle.cli.app_loader import find_app

                self._app = find_app(self._named)
            else:
                from treadle.app import App
                from treadle.config import storage_url

                self._app = App(storage_url(self._url, None))
        return self._app

    def fall_back(self, url: str | None) -> None:
        """Where jobs live if nothing says it: no --url, no --app, no TREADLE_URL."""
        if self._url is None and self._named is None and not os.environ.get("TREADLE_URL"):
            self._url = url

    @property
    def has_tasks(self) -> bool:
        """Whether the user's own app is known, and with it the signatures of its tasks."""
        return self._named is not None

    @property
    def url(self) -> str:
        """Where jobs live, as it may be shown."""
        return shown(self.app.url) if self.app.url else "a storage of the app's own"

    @property
    def file(self) -> Path | None:
        """The database file, if it is one."""
        return file_of(self.app.url)

    def run(self, act: Callable[[App], Awaitable[T]], make: bool = False) -> T:
        """Open the app, act, close it. `make`: a database that is not there may be made; looking never makes one."""
        import asyncio

        app = self.app
        self.check_there(make)

        async def work() -> T:
            async with app:
                if (moved := await move_of(app)) is not None:
                    note(f"treadle: {moved}")
                return await act(app)

        with warnings.catch_warnings():
            warnings.simplefilter("always", UnknownName)
            warnings.simplefilter("ignore", OldRows)  # said above, for all looks of the command
            warnings.showwarning = _shown_as_note(warnings.showwarning)
            return asyncio.run(work())

    def check_there(self, make: bool = False) -> None:
        """Raise Stop if the database file is not there, unless it may be made."""
        file = self.file
        if file is None or file.is_file():
            return
        file = file.absolute()
        if file.exists():
            raise Stop(UNREACHABLE, f"{file} is not a file; give --url sqlite:///file.db")
        if not file.parent.is_dir():
            raise Stop(UNREACHABLE, f"there is no directory {file.parent}; make it, or give another --url")
        if not make:
            raise Stop(UNREACHABLE, f"there is no database {file}; give --url or --app, or make it: `treadle migrate`")
        note(f"treadle: jobs will live in {file}, which is new")


def _shown_as_note(otherwise: Callable[..., None]) -> Callable[..., None]:
    """A warning of a mistyped name as a line for a person; others as they are."""

    def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        if issubclass(category, UnknownName):
            note(f"warning: {message}")
        else:
            otherwise(message, category, *rest, **more)

    return show


async def move_of(app: App) -> str | None:
    """What a person must know of a storage whose jobs live elsewhere, or are on their way; None: nothing."""
    return words(await mark_of(app.storage), shown(app.url) if app.url else "this storage")


def file_of(url: str | None) -> Path | None:
    """The file of a SQLite URL; None for others. Relative to the current directory."""
    parts = urlsplit(url or "")
    path = unquote(parts.path.removeprefix("/"))
    return Path(path) if parts.scheme == "sqlite" and not parts.netloc and path else None


def targeted(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --url and --app to a command, which gets a Target as `target`."""

    @click.option("--url", metavar="URL", help="Where jobs live [TREADLE_URL, else treadle.db in this directory].")
    @click.option("--app", metavar="MODULE:APP", help="The app whose jobs they are; its storage, its tasks.")
    @functools.wraps(command)
    def with_target(url: str | None, app: str | None, **rest: Any) -> Any:
        return command(target=Target(url, app), **rest)

    return with_target


def pairs(values: tuple[str, ...], option: str) -> dict[str, str]:
    """`name=value` options as a mapping."""
    found = {}
    for each in values:
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise Stop(USAGE, f"{option}: expected name=value, found {each!r}")
        found[name] = value
    return found
