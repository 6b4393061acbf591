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

    def operations(self) -> list[Operation]:
        return [
            Operation(
                method="GET",
                path="/v1/jobs/{id}/history",
                run=self.history,
                summary="Show the last runs of a job, its steps and signals, and the states of its children",
                tag="jobs",
                scope="read",
                gives=JobHistory,
                others=(404,),
            )
        ]

    async def history(self, call: Call[None, messages.Nothing]) -> JobHistory:
        jobs, id = self._core.jobs.within(call.token.queues), call.part("id")
        if is_id(id) and not call.token.may("operate"):
            raise UnknownJob(id)
        return shown(await jobs.history(id, hide=call.redaction.row), call.redaction.rest)


def shown(found: JobHistory, redaction: Redaction) -> JobHistory:
    """The history without secrets."""
    attempts = [
        replace(
            each,
            error=redaction.error(each.error),
            logs=tuple(replace(line, text=redaction.text(line.text)) for line in each.logs),
        )
        for each in found.attempts
    ]
    return replace(
        found,
        attempts=tuple(attempts),
        steps=tuple(replace(each, value=_value(each.name, each.value, redaction)) for each in found.steps),
        signals=tuple(replace(each, value=_value(each.name, each.value, redaction)) for each in found.signals),
    )


def _value(name: str, value: Any, redaction: Redaction) -> Any:
    return None if value is None else redaction.named(name, stored_values.carried(value, repr(type(value)), ENCODE))
