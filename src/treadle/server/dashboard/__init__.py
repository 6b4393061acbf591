"""The dashboard: web pages that show and operate jobs, served by `treadle server` or inside your own web application.

It needs the extra: `pip install 'treadle[server]'`.
"""

from __future__ import annotations

try:
    import starlette  # noqa: F401  # an optional dependency
except ImportError as error:
    raise ImportError(
        f"the dashboard needs its extra: pip install 'starlette>=0.45' 'uvicorn>=0.34' ({error})"
    ) from None

from treadle.server.dashboard.mount import Auth, Who, asgi
from treadle.server.dashboard.routes import OPEN_PATHS, dashboard_routes

__all__ = ["OPEN_PATHS", "Auth", "Who", "asgi", "dashboard_routes"]
