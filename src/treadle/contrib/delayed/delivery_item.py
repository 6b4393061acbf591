"""The current delayed job in the form that webhooks and commands receive, and the error of a delivery."""

from __future__ import annotations

import math
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from treadle.contrib.delayed.ids import name_of
from treadle.core.errors import TreadleError
from treadle.execution.context import current


class DeliveryFailed(TreadleError):
    """A delivery failed. The failure counts as an attempt, and the job is retried with back-off."""


class DeliveryItem(NamedTuple):
    """The job that is being delivered. The sender controls only its body; the other fields are safe in a shell."""

    name: str  # 26 characters, or the sender's id with all but letters, digits, `.`, `_`, `-` and `~` percent-encoded
    due: str  # seconds since 1970, a finite number
    attempt: str
    body: bytes
    is_text: bool


def delivery_item(payload: Any) -> DeliveryItem:
    """The item for the current run of a delayed job. A string is delivered as text, any other payload as JSON."""
    here, is_text = current(), isinstance(payload, str)
    body = payload.encode() if is_text else msgspec.json.encode(payload)
    due = _seconds(here.headers.get("dueTime"), here.record.return_position or here.record.created_at)
    return DeliveryItem(quote(name_of(here.id), safe=""), due, str(here.attempt), body, is_text)


def _seconds(header: str | None, otherwise: float) -> str:
    try:
        seconds = float(header or otherwise)
    except ValueError:
        seconds = otherwise
    return repr(seconds if math.isfinite(seconds) else otherwise)
