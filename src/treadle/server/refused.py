"""The exception that ends a request with an error.

It is apart from `errors`, so that the command line can check rights and compose overviews without the web framework.
"""

from __future__ import annotations

from typing import Any

from treadle.storage import messages


class Refused(Exception):
    """Ends a request with an error status. Nothing was stored."""

    def __init__(self, status: int, error: str, message: str, headers: dict[str, str] | None = None, **details: Any):
        super().__init__(message)
        self.status, self.headers = status, headers
        self.problem = messages.Problem(error, message, details)
