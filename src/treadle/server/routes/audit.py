"""The operation on the audit log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from treadle.admin.audit import AuditPage
from treadle.server.middleware import for_everybody
from treadle.server.operation import Call, Operation

if TYPE_CHECKING:
    from treadle.app.core import AppCore


class AuditAsked(Struct, frozen=True, kw_only=True):
    """Which page of entries to read."""

    cursor: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 50


class AuditRoutes:
    """The operation on the audit log of one app."""

    def __init__(self, core: AppCore) -> None:
        self._core = core

    def operations(self) -> list[Operation]:
        return [
            Operation(
                method="GET",
                path="/v1/audit",
                run=self.list,
                summary="List who did what, the newest first",
                tag="operate",
                scope="operate",
                query=AuditAsked,
                gives=AuditPage,
            )
        ]

    async def list(self, call: Call[None, AuditAsked]) -> AuditPage:
        for_everybody(call.token, "entries of the audit log")
        return await self._core.audit.list(cursor=call.query.cursor, limit=call.query.limit)
