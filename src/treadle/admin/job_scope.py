"""Which jobs a view of `app.jobs` shows and changes, and what its searches may find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from treadle.admin.audit import Receipt
from treadle.admin.job_search import Hide, Search
from treadle.core.model import Record
from treadle.storage.row_rules import within


@dataclass(frozen=True, kw_only=True, slots=True)
class JobScope:
    """The default is all jobs, and all that is stored of them.

    queues                 the only queues whose jobs exist for the caller; (): all
    hide, payloads, shown  what searches may find, see `Search`
    receipt                of the entry of the audit log for its acts
    """

    queues: tuple[str, ...] = ()
    hide: Hide | None = None
    payloads: bool = True
    shown: Callable[[Record], Record] | None = None
    receipt: Receipt | None = None

    def visible(self, row: Record | None) -> Record | None:
        """The row; None if it is of another queue."""
        return row if row is not None and within(self.queues, row.job.queue) else None

    def search(self, text: str) -> Search:
        return Search(text, self.hide, self.payloads, self.shown)


ALL = JobScope()
