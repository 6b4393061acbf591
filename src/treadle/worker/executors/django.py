"""Closes old database connections of Django in threads and processes that run one job after another.

Django closes a connection that is broken or past CONN_MAX_AGE only at the beginning and the end of a request.
"""

from __future__ import annotations

import logging
import sys

log = logging.getLogger("treadle")


def close_old_connections() -> None:
    """Call `django.db.close_old_connections()` for this thread if the program has imported and configured Django. Logs
    an error of the driver."""
    database = sys.modules.get("django.db")
    if database is None or not getattr(getattr(sys.modules.get("django.conf"), "settings", None), "configured", False):
        return
    close = getattr(database, "close_old_connections", None)  # None: another thread imports it now
    if close is None:
        return
    try:
        close()
    except Exception:
        log.warning("a database connection of Django could not be closed", exc_info=True)
