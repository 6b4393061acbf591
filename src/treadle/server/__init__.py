"""Jobs over HTTP: the native API, the worker protocol, and the server that serves them. Needs `treadle[server]`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treadle.server.app import ProtocolRoutes, make_site
    from treadle.server.auth.tokens import Token
    from treadle.server.bounds import Bounds
    from treadle.server.opening import open_if_there
    from treadle.server.serve import Serving
    from treadle.server.settings import Settings

__all__ = ["Bounds", "ProtocolRoutes", "Serving", "Settings", "Token", "make_site", "open_if_there"]

_MODULES = {
    "Bounds": "bounds",
    "ProtocolRoutes": "app",
    "Serving": "serve",
    "Settings": "settings",
    "Token": "auth.tokens",
    "make_site": "app",
    "open_if_there": "opening",
}


def __getattr__(name: str) -> Any:
    # lazy: `treadle doctor` checks rows as the server does, and must not need its web framework
    if name in _MODULES:
        return getattr(import_module(f"treadle.server.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
