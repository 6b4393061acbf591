"""Jobs over HTTP: the native API, the worker protocol, and the server that serves them. Needs `treadle[server]`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.server.app import ProtocolRoutes, make_site
    from treadle.server.auth.tokens import Token
    from treadle.server.body_weight import SMALL
    from treadle.server.bounds import Bounds
    from treadle.server.dashboard import OPEN_PATHS, Auth, asgi, dashboard_routes
    from treadle.server.errors import Refused, json
    from treadle.server.full_queue import FullQueues
    from treadle.server.incoming_rows import users_row
    from treadle.server.longpoll import LongPoll
    from treadle.server.middleware import allowed, caller
    from treadle.server.opening import open_if_there
    from treadle.server.repeated_claims import RepeatedClaims
    from treadle.server.request_body import body, spelled
    from treadle.server.runner_metrics import RunnerMetrics
    from treadle.server.serve import Serving
    from treadle.server.settings import GRACE, PORT, WAIT, Settings
else:
    # lazy: `treadle doctor` checks rows as the server does, and must not need its web framework
    from treadle.core.lazy_names import lazy_names

    __getattr__, __dir__ = lazy_names(
        __name__,
        globals(),
        {
            "treadle.server.app": (
                "ProtocolRoutes",
                "make_site",
            ),
            "treadle.server.auth.tokens": ("Token",),
            "treadle.server.body_weight": ("SMALL",),
            "treadle.server.bounds": ("Bounds",),
            "treadle.server.dashboard": ("OPEN_PATHS", "Auth", "asgi", "dashboard_routes"),
            "treadle.server.errors": (
                "Refused",
                "json",
            ),
            "treadle.server.full_queue": ("FullQueues",),
            "treadle.server.incoming_rows": ("users_row",),
            "treadle.server.longpoll": ("LongPoll",),
            "treadle.server.middleware": (
                "allowed",
                "caller",
            ),
            "treadle.server.opening": ("open_if_there",),
            "treadle.server.repeated_claims": ("RepeatedClaims",),
            "treadle.server.request_body": (
                "body",
                "spelled",
            ),
            "treadle.server.runner_metrics": ("RunnerMetrics",),
            "treadle.server.serve": ("Serving",),
            "treadle.server.settings": (
                "GRACE",
                "PORT",
                "Settings",
                "WAIT",
            ),
        },
    )

__all__ = [
    "GRACE",
    "OPEN_PATHS",
    "PORT",
    "SMALL",
    "WAIT",
    "Auth",
    "Bounds",
    "FullQueues",
    "LongPoll",
    "ProtocolRoutes",
    "Refused",
    "RepeatedClaims",
    "RunnerMetrics",
    "Serving",
    "Settings",
    "Token",
    "allowed",
    "asgi",
    "body",
    "caller",
    "dashboard_routes",
    "json",
    "make_site",
    "open_if_there",
    "spelled",
    "users_row",
]
