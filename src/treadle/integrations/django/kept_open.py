"""Keeps an App open between the page views of a web process: opening a storage makes a pool, tens of ms on PostgreSQL.

A pause without views closes it, so an idle web process has no connection besides Django's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from django.core import mail

from treadle.app import App

log = logging.getLogger("treadle")

PAUSE: Final = 60.0  # s without a view


def in_tests() -> bool:
    """Whether Django's test runner has prepared this process. It could not remove a database with open connections."""
    return hasattr(mail, "outbox")


class KeptOpen:
    """Keeps one App open, in one process."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._begin()
        app._core.when_forked.append(self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._held = False  # an earlier view has opened the app; it is closed after a pause
        self._timer: threading.Timer | None = None

    @contextmanager
    def view(self) -> Iterator[App]:
        """The App, open. Raises StorageError."""
        core, sync = self._app._core, self._app.sync
        sync.call(core.open())
        try:
            yield self._app
        finally:
            if in_tests() or not self._keep():
                sync.call(core.release())

    def _keep(self) -> bool:
        """Begin the pause anew. Returns whether the caller's `open` is the one that is kept."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = threading.Timer(PAUSE, self.close)
            self._timer.daemon = True
            self._timer.start()
            self._held, held = True, self._held
            return not held

    def close(self) -> None:
        """Close the App, unless a view uses it or a call without a view has opened it."""
        with self._lock:
            self._held, held = False, self._held
        if held:
            try:
                self._app.sync.call(self._app._core.release())
            except Exception:  # the next view opens it again
                log.warning("the jobs' storage could not be closed", exc_info=True)
