"""Django's database connections, in threads and processes that run one job after another.

Django closes a connection that is broken or past CONN_MAX_AGE at the beginning and the end of a request, and knows
nothing of jobs.
"""

from __future__ import annotations

import logging
import sys

log = logging.getLogger("treadle")


def close_old_connections() -> None:
    """`django.db.close_old_connections()` for this thread, in a program that has imported and configured Django. An
    error of the driver is logged."""
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
