"""Closes old database connections of Django in threads and processes that run one job after another.

Django closes a connection that is broken or past CONN_MAX_AGE only at the beginning and the end of a request.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

log = logging.getLogger("treadle")


def close_old_connections() -> None:
    """Call `django.db.close_old_connections()` for this thread if the program has imported and configured Django. Logs
    an error of the driver."""
    close = _of_django("close_old_connections")
    if close is not None:
        _try(close)


def close_connections() -> None:
    """Close all connections of this thread, which ends. Logs an error of the driver."""
    connections = _of_django("connections")
    if connections is not None:
        _try(connections.close_all)


def _of_django(name: str) -> Any:
    """A name of `django.db`; None if Django is not configured, or another thread imports it now."""
    database = sys.modules.get("django.db")
    if database is None or not getattr(getattr(sys.modules.get("django.conf"), "settings", None), "configured", False):
        return None
    return getattr(database, name, None)


def _try(close: Callable[[], object]) -> None:
    try:
        close()
    except Exception:
        log.warning("a database connection of Django could not be closed", exc_info=True)
