"""Refuses writes of a run whose open transaction blocks every other write to the storage (SQLite).

Such a write would wait until that transaction is rolled back, and block all other processes meanwhile. Reads are
allowed.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, Final, NoReturn, cast

from treadle.core.errors import NestedTransaction
from treadle.execution.job_run import in_sole_transaction
from treadle.storage.contract import Storage

WRITES: Final = frozenset(
    {
        "enqueue",
        "claim",
        "heartbeat",
        "settle",
        "settle_claim",
        "set_limits",
        "prune",
        "store_metrics",
        "set_mark",
        "load",
        "begin",
    }
)


def guarded(storage: Storage) -> Storage:
    """The storage. Inside a run with such a transaction, a proxy that refuses writes."""
    return cast("Storage", _Looking(storage)) if in_sole_transaction() else storage


class _Looking:
    """A storage whose writes raise NestedTransaction."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def __getattr__(self, name: str) -> Any:
        return _refuse if name in WRITES else getattr(self._storage, name)


def _refuse(*_: object, **__: object) -> NoReturn:
    refuse(_called())


def refuse(what: str) -> NoReturn:
    raise NestedTransaction(
        f"{what} inside current().transaction() would wait for that transaction, because its storage has one writer at "
        "a time: do it before the block, or in a job that you enqueue in the block with within=tx"
    )


def _called() -> str:
    """The method of the app that was called: the outermost frame in one of its modules. The frames of awaiting
    coroutines are on the stack too."""
    frame: FrameType | None = sys._getframe(2)
    name = "a write to the storage"
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith(("treadle.admin.", "treadle.scheduling.")) and not frame.f_code.co_name.startswith("_"):
            part = module.rpartition(".")[2]
            name = f"app.{'jobs' if part.startswith('job_') else part}.{frame.f_code.co_name}"
        frame = frame.f_back
    return name
