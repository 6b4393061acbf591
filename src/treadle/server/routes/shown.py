"""Shared by several routes: searches that skip secrets, and the queues that a caller's request is about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from treadle.admin import Hide, stored_values
from treadle.core.payload_redaction import Redaction
from treadle.core.plain_json import read_json
from treadle.server.errors import Refused
from treadle.server.operation import Call
from treadle.server.shown_payloads import ENCODE

if TYPE_CHECKING:
    from treadle.admin import Jobs
    from treadle.app.core import AppCore


def hidden_by(redaction: Redaction) -> Hide:
    """Replaces what this redaction hides in decoded arguments and in texts, before a search looks at them."""

    def hide(value: Any) -> Any:
        if isinstance(value, str):
            return redaction.text(value)
        try:
            return read_json(redaction.json(Raw(ENCODE(value))))
        except Exception:  # as in stored_values: values of users may raise anything when they are encoded
            return []

    return hide


def value_shown(name: str, value: Any, redaction: Redaction) -> Any:
    """The value of a step, a signal or something else with a name, as JSON without secrets."""
    return None if value is None else redaction.named(name, stored_values.carried(value, repr(type(value)), ENCODE))


def queue_of(call: Call[Any, Any], queue: str | None) -> str | None:
    """The queue of a request: the one that it names, else the token's only queue. None: all queues that the token may
    read.

    Raises Refused (403) for a queue that the token has no right to.
    """
    if queue is not None:
        call.allowed([queue])
        return queue
    return call.token.queues[0] if len(call.token.queues) == 1 else None


def one_queue(call: Call[Any, Any], queue: str | None, how: str) -> str | None:
    """The queue of a list, as `queue_of`. A request with a token for several queues must name one of them; the error
    says `how`."""
    chosen, token = queue_of(call, queue), call.token
    if chosen is None and token.queues:
        raise Refused(403, "forbidden", f"the token {token.name!r} may read {', '.join(token.queues)}: {how}")
    return chosen


def jobs_of(core: AppCore, call: Call[Any, Any]) -> Jobs:
    """A view of `app.jobs` with the queues of the caller's token, whose acts complete the call's entry of the audit
    log."""
    return core.jobs.within(call.token.queues, call.receipt)


def names_of(text: str | None) -> Sequence[str]:
    """The parts of a parameter, which commas separate."""
    return tuple(part for name in (text or "").split(",") if (part := name.strip()))


def only_one(**fields: object) -> None:
    """Raise Refused (422) unless exactly one of these fields is fields."""
    if sum(field is not None for field in fields.values()) != 1:
        raise Refused(422, "wrong_shape", f"expected exactly one of {', '.join(fields)}")
