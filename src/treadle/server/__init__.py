"""Jobs over HTTP: the native API, the worker protocol, and how a server is run. Needs the extra `treadle[server]`."""

from treadle.server.bounds import Bounds
from treadle.server.serve import Serving
from treadle.server.settings import Settings
from treadle.server.site import make_site
from treadle.server.tokens import Token

__all__ = ["Bounds", "Serving", "Settings", "Token", "make_site"]
