"""Jobs over HTTP: the native API, the worker protocol, and the server that serves them. Needs `treadle[server]`."""

from treadle.server.app import make_site
from treadle.server.auth.tokens import Token
from treadle.server.bounds import Bounds
from treadle.server.serve import Serving
from treadle.server.settings import Settings

__all__ = ["Bounds", "Serving", "Settings", "Token", "make_site"]
