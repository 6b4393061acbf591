"""Makes the operations of the worker protocol: one POST under /v1/work/ for each method of the storage contract."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from treadle.core.model import Claimed
from treadle.core.query_model import Page, Query
from treadle.server.operation import Call, Operation
from treadle.server.request_body import BODY
from treadle.storage import messages

SHORT: Final = (messages.Nothing, messages.GlanceCall, messages.LimitsCall, messages.Prune, messages.ReadMetrics)
LISTS: Final = (messages.ClaimCall, messages.Ids, Query, messages.Watch)  # requests with names and ids, without rows
ROWS: Final = (messages.Records, messages.AllSettled, messages.SettledClaimed, Claimed, Page)  # responses with payloads
IDS: Final = 8 * 2**20  # bytes of such a request: more than 100,000 ids


def verb(
    run: Callable[[Call[Any, Any]], Awaitable[object]], takes: Any, gives: Any, scope: str, summary: str
) -> Operation:
    """The operation of a method that has the name of the contract's."""
    name = run.__name__
    most = BODY if takes in SHORT else IDS if takes in LISTS else None
    return Operation(
        method="POST",
        path=f"/v1/work/{name}",
        run=run,
        summary=summary,
        tag="work",
        scope=scope,
        takes=takes,
        gives=gives,
        most=most,
        bare=gives in ROWS,
    )
