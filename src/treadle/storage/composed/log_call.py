"""A call that waits for its entry of the log, and its answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from treadle.concurrency.group_commit import Request
from treadle.core.model import Claimed
from treadle.storage.composed.log_entries import Op
from treadle.storage.composed.replica import Replica

Look = Callable[[Replica, float], Any]
_encode = msgspec.json.Encoder().encode


class LogCall(Request):
    """A waiting call: the verb it may append, whether it must be appended, and its answer if not."""

    __slots__ = ("look", "op", "text", "wants")

    def __init__(self, op: Op | None, look: Look | None, wants: Callable[[Replica, float], bool] | None) -> None:
        super().__init__()
        self.op, self.look, self.wants = op, look, wants
        self.text = _encode(op) if op is not None else b""

    def writes(self, replica: Replica, now: float) -> bool:
        return self.op is not None and (self.wants is None or self.wants(replica, now))


def seen(call: LogCall, replica: Replica, now: float) -> Any:
    try:
        return call.look(replica, now) if call.look is not None else None
    except Exception as error:  # for example a wrong cursor
        return error


def taken(answer: Any) -> int:
    """The number of jobs in an answer of a claim."""
    claimed = answer[1] if isinstance(answer, tuple) and len(answer) == 2 else answer
    return len(claimed.records) if isinstance(claimed, Claimed) else 0
