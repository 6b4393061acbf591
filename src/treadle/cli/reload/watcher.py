"""Waits until watched files have changed and are at rest again.

A comparison of two reads of the files decides what changed. watchfiles, where it is installed, only says when to read;
without it, the files are read every POLL seconds. So both find the same changes, also of files that an editor replaces
by renaming.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from treadle.cli.output import note
from treadle.concurrency.spawn import started
from treadle.core.clock import monotonic

# --- the watched files
#
# The files that `--reload` watches, and what changed between two looks at them.
#
# A look reads names and modification times only. It visits at most FOLDERS folders, so that a start in a home folder
# does not occupy a core.


FOLDERS: Final = 2_000  # folders of one root that a look visits: 20 ms
NAMED: Final = 3  # changed files that the message names
SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages", "dist-packages"})
WRITTEN: Final = re.compile(  # a running app writes databases and logs; editors write the rest next to the file
    r"\.(db|sqlite3?)(\b|_)|\.(pyc|pyo|log|swp|swx|tmp)$|~$|^4913$|^\.#|___jb_"
)

Mark = tuple[int, int, int]
"""The inode, size and modification time in ns of a file; a symbolic link has those of its target."""
Look = Mapping[str, Mark]
"""The result of one look: the mark of each file by its path."""


class Root(NamedTuple):
    """A folder or file to watch: with `every`, all files in it, otherwise Python's."""

    path: Path
    every: bool = False


class Changes(NamedTuple):
    """The files that differ between two looks."""

    written: Sequence[str]
    deleted: Sequence[str]

    def __bool__(self) -> bool:
        return bool(self.written or self.deleted)

    def text(self, here: Path) -> str:
        """Such as "shop/tasks.py changed, old.py was deleted and 4 more"."""
        lines = [f"{_short(path, here)} changed" for path in self.written]
        lines += [f"{_short(path, here)} was deleted" for path in self.deleted]
        named, more = lines[:NAMED], len(lines) - NAMED
        return ", ".join(named) + (f" and {more} more" if more > 0 else "")


class Watched:
    """The files of some roots, and single files that were added."""

    def __init__(self, roots: Sequence[Root]) -> None:
        self.roots = roots
        self.too_many: Path | None = None  # a root with more folders than a look visits
        self._added: set[str] = set()

    def add(self, paths: Iterable[str]) -> None:
        """Watch these files too; they may be outside of the roots."""
        self._added.update(paths)

    def look(self) -> dict[str, Mark]:
        """The mark of each file now. Files that cannot be read are left out."""
        all_marks: dict[str, Mark] = {}
        for root in self.roots:
            all_marks |= marks(self._below(root))
        return all_marks | marks(tuple(self._added))

    def _below(self, root: Root) -> Iterator[str]:
        if root.path.is_file():
            yield str(root.path)
            return
        folders, seen = [str(root.path)], set[tuple[int, int]]()
        while folders:
            folder = folders.pop()
            if len(seen) >= FOLDERS:
                self.too_many = root.path
                return
            try:
                status = os.stat(folder)
                entries = [] if (status.st_dev, status.st_ino) in seen else list(os.scandir(folder))
            except OSError:
                continue  # deleted since, or not ours to read
            seen.add((status.st_dev, status.st_ino))  # a link may lead back to a folder above it
            if any(entry.name == "pyvenv.cfg" for entry in entries):
                continue
            for entry in entries:
                if _is_folder(entry):
                    if entry.name not in SKIPPED and not entry.name.startswith("."):
                        folders.append(entry.path)
                elif (root.every or entry.name.endswith(".py")) and not WRITTEN.search(entry.name):
                    yield entry.path


def changes(before: Look, after: Look) -> Changes:
    """The difference of two looks, each part sorted by path."""
    written = sorted(path for path, mark in after.items() if before.get(path) != mark)
    return Changes(written, sorted(before.keys() - after.keys()))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def marks(paths: Iterable[str]) -> dict[str, Mark]:
    """The mark of each of these files now. Files that cannot be read are left out."""
    by_path: dict[str, Mark] = {}
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            continue
        by_path[path] = (status.st_ino, status.st_size, status.st_mtime_ns)
    return by_path


def is_source(path: str) -> bool:
    """Whether a file of this path may be watched: no database, log, compiled file or copy of an editor."""
    folder, name = os.path.split(path)
    return not WRITTEN.search(name) and "__pycache__" not in folder


def _short(path: str, here: Path) -> str:
    full = Path(path)
    return str(full.relative_to(here)) if full.is_relative_to(here) else path


# --- the watch


POLL: Final = 0.5  # s between two looks without watchfiles
FAR: Final = 1.0  # s between two looks with watchfiles, for files outside the roots
QUIET: Final = 0.05  # s without a change after which the files are at rest: some editors write a file twice
STORM: Final = 2.0  # s after which files that keep changing are reloaded all the same


class Watcher:
    """Tells changes since the last `begin`."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._before: Look = {}
        self._hint = asyncio.Event()  # something changed in a root
        self._native: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._warned = False

    async def __aenter__(self) -> Watcher:
        if importlib.util.find_spec("watchfiles") is not None:
            self._native = started(self._listen())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        if self._native is not None:
            self._native.cancel()
            await asyncio.gather(self._native, return_exceptions=True)

    async def begin(self) -> None:
        """Remember the files as they are now; call it before the processes read them."""
        self._before = await self._look()

    def add(self, loaded: Look) -> None:
        """Watch these files too. Each had this mark when it was loaded."""
        self._watched.add(loaded)
        self._before = {**loaded, **self._before}

    async def changed(self) -> Changes:
        """Wait for a change since `begin` -> all of them, once the files are at rest."""
        while True:
            after = await self._look()
            if changes(self._before, after) and (changed := await self._settled(after)):
                return changed
            self._hint.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL if self._native is None else FAR):
                    await self._hint.wait()

    async def _settled(self, last: Look) -> Changes:
        """The changes that are left when two reads in a row are equal."""
        until = monotonic() + STORM
        while monotonic() < until:
            await asyncio.sleep(QUIET)
            after = await self._look()
            if after == last:
                break
            last = after
        return changes(self._before, last)

    async def _look(self) -> Look:
        look = await asyncio.to_thread(self._watched.look)
        if self._watched.too_many is not None and not self._warned:
            self._warned = True
            note(
                f"treadle: {self._watched.too_many} has too many folders to watch; of the others, only modules that "
                "are loaded are watched: start the command in the folder of the project, or name a folder with --watch"
            )
        return look

    async def _listen(self) -> None:
        """Set the hint at each change that watchfiles sees. If it cannot watch, polling continues at its pace."""
        module: Any = importlib.import_module("watchfiles")
        paths = [root.path for root in self._watched.roots if root.path.exists()]
        options = {"watch_filter": lambda _, path: is_source(path), "debounce": 50, "step": 20}
        try:
            async for _ in module.awatch(*paths, stop_event=self._stop, ignore_permission_denied=True, **options):
                self._hint.set()
        except Exception as error:  # such as no more inotify watches: the reason goes to the user
            self._native = None
            note(f"treadle: watchfiles cannot watch ({error}); looking every {POLL:g} s instead")
