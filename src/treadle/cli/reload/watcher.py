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
from typing import Any, Final

from treadle.cli.output import note
from treadle.cli.reload.files import Changes, Look, Watched, changes, is_source
from treadle.concurrency.spawn import started
from treadle.core.clock import monotonic

POLL: Final = 0.5  # s between two checks without watchfiles
FAR: Final = 1.0  # s between two checks with watchfiles, for files outside the roots
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
