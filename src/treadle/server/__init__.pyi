"""The public names of the package, each with its module. Type checkers read this file, and so does `__init__.py`."""

from treadle.server.app import ProtocolRoutes as ProtocolRoutes
from treadle.server.app import make_site as make_site
from treadle.server.app import open_if_there as open_if_there
from treadle.server.auth.tokens import Token as Token
from treadle.server.bounds import Bounds as Bounds
from treadle.server.dashboard import OPEN_PATHS as OPEN_PATHS
from treadle.server.dashboard import Auth as Auth
from treadle.server.dashboard import asgi as asgi
from treadle.server.dashboard import dashboard_routes as dashboard_routes
from treadle.server.errors import Refused as Refused
from treadle.server.errors import json as json
from treadle.server.incoming_rows import users_row as users_row
from treadle.server.long_lists import SMALL as SMALL
from treadle.server.longpoll import LongPoll as LongPoll
from treadle.server.middleware import FullQueues as FullQueues
from treadle.server.middleware import allowed as allowed
from treadle.server.middleware import caller as caller
from treadle.server.request_body import body as body
from treadle.server.request_body import spelled as spelled
from treadle.server.routes.runner_claims import RepeatedClaims as RepeatedClaims
from treadle.server.runner_metrics import RunnerMetrics as RunnerMetrics
from treadle.server.serve import Serving as Serving
from treadle.server.settings import GRACE as GRACE
from treadle.server.settings import PORT as PORT
from treadle.server.settings import WAIT as WAIT
from treadle.server.settings import Settings as Settings
