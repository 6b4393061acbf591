"""Error responses, all of the form {"error": word, "message": sentence, "details": {...}}.

The word identifies the kind of error for programs.
"""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from treadle.core.errors import TreadleError
from treadle.server.refused import Refused as Refused
from treadle.storage import messages

ENCODE = msgspec.json.Encoder().encode


def json(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A value as a JSON response."""
    return Response(ENCODE(value), status, headers, media_type="application/json")


def refusal(error: Refused) -> Response:
    return json(error.problem, error.status, error.headers)


def response_of(error: TreadleError) -> Response:
    """The response to an error of the library, with its status."""
    status, problem = messages.problem_of(error)
    return json(problem, status, {"Retry-After": "1"} if status == 503 else None)
