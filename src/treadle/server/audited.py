"""Records each changing call of the native API in the audit log.

Calls of programs that send and run jobs are not recorded, because they are no acts of an operator and happen often.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from treadle.admin import Audit
from treadle.admin.audit import Receipt, Source
from treadle.server.auth.tokens import ANYBODY
from treadle.server.routes.job_messages import Acted

ENQUEUE = "job.enqueue"


def by_person(request: Any) -> bool:
    """Whether a person at a browser sent the request: by a session, or from a page."""
    return request.scope.get("treadle.auth") in ("session", "host") or "sec-fetch-site" in request.headers


def who(call: Any) -> str:
    """The name of the caller: its token's, or without tokens its address."""
    if call.token is not ANYBODY:
        return str(call.token.name)
    address = call.request.scope.get("treadle.caller")
    return f"anybody at {address}" if address else "anybody"


def source_of(call: Any) -> Source:
    """Where the call came from: "api", or the program that makes calls within this process."""
    found: Source = call.request.scope.get("treadle.source", "api")
    return found


@asynccontextmanager
async def audited(audit: Audit, act: str, details: tuple[str, ...], call: Any) -> AsyncIterator[Receipt]:
    """Record one call. `details`: the fields of its body that the entry has."""
    parts = call.request.path_params
    target = parts.get("id") or parts.get("name") or getattr(call.body, "task", "")
    async with audit.record(
        act, str(target), filter=_details(call.body, details), by=who(call), source=source_of(call)
    ) as receipt:
        yield receipt


def take(receipt: Receipt, answer: object, call: Any) -> None:
    """Note the result of a call."""
    if isinstance(answer, Acted):
        receipt.done = answer.jobs
        if answer.jobs and "id" in call.request.path_params:
            receipt.ids = [call.request.path_params["id"]]


def _details(body: object, names: tuple[str, ...]) -> str | None:
    if not names or not isinstance(body, Struct):
        return None
    found = [(name, value) for name in names if (value := getattr(body, name)) not in (None, UNSET)]
    return ", ".join(f"{name}={msgspec.json.encode(value).decode()}" for name, value in found) or None
