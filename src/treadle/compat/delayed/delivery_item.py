"""The delayed job that is delivered now, as a webhook and a command get it, and the error of a delivery."""

from __future__ import annotations

import math
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from treadle.compat.delayed.ids import name_of
from treadle.errors import TreadleError
from treadle.execution.context import current


class DeliveryFailed(TreadleError):
    """The other side did not take the job: a counted failure, tried again with back-off."""


class DeliveryItem(NamedTuple):
    """The job that is delivered now. The sender chose its body only: a shell may compute with the rest."""

    name: str  # 26 characters, or an id of the sender's: all but letters, digits, `.`, `_`, `-` and `~` percent-coded
    due: str  # seconds since 1970, a finite number
    attempt: str
    body: bytes
    is_text: bool


def delivery_item(payload: Any) -> DeliveryItem:
    """From within the run of a delayed job. A text is delivered as that text, anything else as JSON."""
    here, is_text = current(), isinstance(payload, str)
    body = payload.encode() if is_text else msgspec.json.encode(payload)
    due = _seconds(here.headers.get("dueTime"), here.record.joined_at or here.record.created_at)
    return DeliveryItem(quote(name_of(here.id), safe=""), due, str(here.attempt), body, is_text)


def _seconds(asked: str | None, otherwise: float) -> str:
    try:
        found = float(asked or otherwise)
    except ValueError:
        found = otherwise
    return repr(found if math.isfinite(found) else otherwise)
