"""The storage of a command: from --url, from the app of --app, from TREADLE_URL, or treadle.db in this directory.

A command that only reads raises an error if the SQLite file is missing, instead of creating it.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from treadle.cli.options import app_option
from treadle.cli.output import UNREACHABLE, USAGE, Stop, note
from treadle.core.command_lines import program, typed
from treadle.core.redaction import shown
from treadle.server.doctor.sqlite import file_of as file_of
from treadle.storage import mark_of, words

if TYPE_CHECKING:
    from treadle.admin.audit import Receipt
    from treadle.app import App

T = TypeVar("T")
IMPLIED = "_TREADLE_APP"  # in the environment: the app that the user need not name, because the program adds it
_COMMAND = r"(?:^|(?<=`)){} (?P<verb>worker|(?:jobs|queues|limits|schedules) [a-z-]+)(?=[ `]|$)"


class Target:
    """The storage or app that the user named. It is opened when a command runs."""

    def __init__(self, url: str | None, app: str | None) -> None:
        if url is not None and app is not None:
            raise click.UsageError("give --url or --app, not both")
        self._url, self._named = url, app
        self._app: App | None = None

    @property
    def app(self) -> App:
        """The user's app, or one without tasks on the storage."""
        if self._app is None:
            if self._named is not None:
                from treadle.cli.app_loader import find_app

                self._app = find_app(self._named)
            else:
                from treadle.cli.app_loader import app_at
                from treadle.core.config import storage_url

                self._app = app_at(storage_url(self._url, None))
        return self._app

    def fall_back(self, url: str | None) -> None:
        """Use this storage URL if there is no --url, --app or TREADLE_URL."""
        if self._url is None and self._named is None and not os.environ.get("TREADLE_URL"):
            self._url = url

    @property
    def has_tasks(self) -> bool:
        """Whether the user named an app, so that the signatures of its tasks are known."""
        return self._named is not None

    @property
    def url(self) -> str:
        """The storage URL without its password."""
        return shown(self.app.url) if self.app.url else "a storage of the app's own"

    def repeating(self, text: str) -> str:
        """The text, such as a sentence of `explain`, with the typed --url or --app in each command: without it the
        command would act on another storage. A password is hidden."""
        app = shlex.quote(self._named) if self._named not in (None, os.environ.get(IMPLIED)) else None
        url = f" --url {shlex.quote(shown(self._url))}" if self._url is not None else ""

        def whole(match: re.Match[str]) -> str:
            verb = match["verb"]
            return match[0] + (url if app is None else f" {app}" if verb == "worker" else f" --app {app}")

        return re.sub(_COMMAND.format(re.escape(program())), whole, typed(text))

    @property
    def file(self) -> Path | None:
        """The SQLite file; None for other storages."""
        return file_of(self.app.url)

    def run(self, act: Callable[[App], Awaitable[T]], make: bool = False, look: bool = False) -> T:
        """Open the app, call `act`, close the app. `make`: create a missing SQLite file. `look`: only read the storage,
        without migrating it."""
        import asyncio

        from treadle.admin.known_names import heard

        app = self.app
        self.check_there(make)

        async def work() -> T:
            async with app:
                await note_move(app)
                return await act(app)

        # The note of `move_of` reports that rows are old.
        with heard(tell=lambda text: note(f"warning: {text}")), app._core.looking() if look else nullcontext():
            return asyncio.run(work())

    def check_there(self, make: bool = False) -> None:
        """Raise Stop if the SQLite file is missing. With `make`, print a note instead."""
        file = self.file
        if file is None or file.is_file():
            return
        file = file.absolute()
        if file.exists():
            raise Stop(UNREACHABLE, f"{file} is not a file; give --url sqlite:///file.db")
        if not file.parent.is_dir():
            raise Stop(UNREACHABLE, f"there is no directory {file.parent}; create it, or give another --url")
        if not make:
            raise Stop(
                UNREACHABLE,
                f"there is no database {file}; give --url or --app, or create it: `treadle storage migrate`",
            )
        note(f"treadle: creating the database {file}")


async def move_of(app: App) -> str | None:
    """A note if the storage is part of a move, or its jobs have moved; else None."""
    return words(await mark_of(app.storage), shown(app.url) if app.url else "this storage")


async def note_move(app: App) -> None:
    """Print that note, if there is one. Each command that opens a storage calls this, or shows `move_of`."""
    if (moved := await move_of(app)) is not None:
        note(f"treadle: {moved}")


def audited(app: App, act: str, target: str = "", details: str | None = None) -> AbstractAsyncContextManager[Receipt]:
    """Record an act of a command in the audit log, as one of user@host."""
    return app.audit.record(act, target, filter=details, source="cli")


def targeted(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --url and --app to a command, which receives a Target as `target`."""

    @click.option("--url", metavar="URL", help="Storage URL. [default: TREADLE_URL, else treadle.db in this directory]")
    @app_option("App whose storage and tasks to use, as module:attribute or file.py:attribute.")
    @functools.wraps(command)
    def with_target(url: str | None, app: str | None, **rest: Any) -> Any:
        return command(target=Target(url, app), **rest)

    return with_target


def pairs(values: tuple[str, ...], option: str) -> dict[str, str]:
    """`name=value` options as a mapping."""
    by_name = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise Stop(USAGE, f"{option}: expected name=value, found {text!r}")
        by_name[name] = value
    return by_name
