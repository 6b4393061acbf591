"""The operation on the history of one job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from treadle.admin import JobHistory, stored_values
from treadle.admin.audit import is_id
from treadle.core.errors import UnknownJob
from treadle.core.payload_redaction import Redaction
from treadle.server.operation import Call, Operation
from treadle.server.shown_payloads import ENCODE
from treadle.storage import messages

if TYPE_CHECKING:
    from treadle.app.core import AppCore


class HistoryRoutes:
    """The operation on the history of a job of one app."""

    def __init__(self, core: AppCore) -> None:
        self._core = core

    @Operation("GET /v1/jobs/{id}/history", tag="jobs", scope="read", others=(404,))
    async def history(self, call: Call[None, messages.Nothing]) -> JobHistory:
        """Show the last runs of a job, its steps and signals, and the states of its children."""
        jobs, id = self._core.jobs.within(call.token.queues), call.part("id")
        if is_id(id) and not call.token.may("operate"):
            raise UnknownJob(id)
        history = await jobs.history(id, hide=call.redaction.row, value=stored_values.as_json)
        return shown(history, call.redaction.rest)


def shown(history: JobHistory, redaction: Redaction) -> JobHistory:
    """The history without secrets."""
    attempts = [
        replace(
            attempt,
            error=redaction.error(attempt.error),
            logs=tuple(replace(line, text=redaction.text(line.text)) for line in attempt.logs),
        )
        for attempt in history.attempts
    ]
    return replace(
        history,
        attempts=tuple(attempts),
        steps=tuple(replace(step, value=_value(step.name, step.value, redaction)) for step in history.steps),
        signals=tuple(replace(one, value=_value(one.name, one.value, redaction)) for one in history.signals),
    )


def _value(name: str, value: Any, redaction: Redaction) -> Any:
    return None if value is None else redaction.named(name, stored_values.carried(value, repr(type(value)), ENCODE))
