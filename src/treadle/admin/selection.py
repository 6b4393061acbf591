"""The jobs that an operation is about: some ids, a filter, or a group of failures. It reads them page by page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from treadle.admin import job_search
from treadle.admin.audit import is_entry
from treadle.admin.failure_groups import GroupKey, Shown, as_stored, key_of
from treadle.admin.job_filters import ENDED, UNFINISHED
from treadle.admin.job_search import Search
from treadle.core.clock import moment
from treadle.core.model import Record, State
from treadle.core.query_model import Query
from treadle.storage import Pages
from treadle.storage.contract import Storage
from treadle.storage.row_rules import within as in_reach

STEP: Final = 500  # rows of one step
LOOKED: Final = 1_000  # rows that one step looks at: 1 ms on SQLite, 10 ms on Redis
MATCHED: Final = 10_000  # matches that a preview counts
SAMPLES: Final = 5
UNKNOWN: Final = "unknown job"  # also a job of a queue that the caller has no right to
LATER: Final = "it was created later"


class Preview(Struct, frozen=True, kw_only=True):
    """The jobs that a selection contains now.

    matches  their number; capped: there are at least this many
    samples  the first five
    unknown  ids that are not known
    """

    matches: int
    capped: bool
    samples: Sequence[Record]
    unknown: Sequence[str] = ()


class Selection(Struct, frozen=True, kw_only=True):
    """The jobs to act on.

    ids     if not empty, these jobs; otherwise those of `query`, with `search` or `group`
    before  jobs created at this instant or later are left out
    queues  the only queues whose jobs count; (): all
    shown   a row as the caller may see it, for `group`
    """

    query: Query
    ids: tuple[str, ...] = ()
    search: Any = None  # a job_search.Search
    group: GroupKey | None = None
    signature: str | None = None
    before: float
    queues: tuple[str, ...] = ()
    shown: Shown = as_stored

    @property
    def words(self) -> str:
        """The jobs in words."""
        if self.ids:
            named = ", ".join(self.ids[:3])
            return f"{len(self.ids):,} jobs by id: {named}" + (", ..." if len(self.ids) > 3 else "")
        text = None if self.search is None else self.search.text
        return words_of(self._bounded(), text, self.signature)

    async def read(self, storage: Storage) -> AsyncIterator[tuple[list[Record], int, Mapping[str, int]]]:
        """Yield the jobs step by step, with the number of jobs looked at, and of ids passed over by reason."""
        if self.ids:
            for start in range(0, len(self.ids), STEP):
                part = self.ids[start : start + STEP]
                rows = [row for row in await storage.get(part) if row is not None and self._may(row)]
                known = [row for row in rows if row.created_at < self.before]
                reasons = {UNKNOWN: len(part) - len(rows), LATER: len(rows) - len(known)}
                yield known, len(part), {reason: count for reason, count in reasons.items() if count}
            return
        for query in self._queries():
            async for page in Pages(partial(self._page, storage, query)):
                examined = len(page.records) if page.scanned is None or self.queues else page.scanned
                yield [row for row in page.records if self._may(row) and self._in_group(row)], examined, {}

    async def preview(self, storage: Storage) -> Preview:
        """Count the jobs, up to 10,000 matches, looking at as many rows as a bounded query does."""
        matches, examined, samples = 0, 0, list[Record]()
        async for rows, more, _ in self.read(storage):
            samples += rows[: SAMPLES - len(samples)]
            matches, examined = matches + len(rows), examined + more
            if matches >= MATCHED or examined >= storage.capabilities.scan:
                return Preview(matches=min(matches, MATCHED), capped=True, samples=samples)
            await asyncio.sleep(0)
        unknown: Sequence[str] = ()
        if self.ids:
            known = await storage.get(self.ids)
            unknown = [id for id, row in zip(self.ids, known, strict=True) if row is None or not self._may(row)]
        return Preview(matches=matches, capped=False, samples=samples, unknown=unknown)

    def _bounded(self) -> Query:
        before = self.before if self.query.before is None else min(self.before, self.query.before)
        query = replace(self.query, before=before, order="oldest", limit=STEP, scan=LOOKED)
        if self.group is None:
            return query
        return replace(query, queue=self.group.queue, task=self.group.task, state=(State.FAILED,))

    def _queries(self) -> Iterator[Query]:
        """One query, or one for each queue of the caller."""
        query = self._bounded()
        if query.queue is not None or not self.queues:
            yield query
        else:
            yield from (replace(query, queue=queue) for queue in self.queues)

    async def _page(self, storage: Storage, query: Query, cursor: str | None) -> Any:
        search: Search | None = self.search
        query = replace(query, cursor=cursor)
        return await (storage.find(query) if search is None else job_search.find(storage, query, search))

    def _may(self, row: Record) -> bool:
        return bool(row.job.task) and not is_entry(row) and in_reach(self.queues, row.job.queue)

    def _in_group(self, row: Record) -> bool:
        return self.group is None or key_of(self.shown(row)) == self.group


ACTS: Final = {"retry": "Reopen", "cancel": "Cancel", "run_now": "Queue now", "delete": "Delete"}


def words_of(query: Query, text: str | None = None, signature: str | None = None) -> str:
    """`failed jobs of task 'mail' in queue 'default', created before 2026-11-25 14:02 UTC`."""
    parts = [f"{_kind(query)} jobs"]
    for value, label in (
        (query.task, "of task"),
        (query.queue, "in queue"),
        (query.label, "with the label"),
        (query.root, "of workflow"),
        (query.parent, "that are children of"),
        (text, "with the text"),
        (signature, "with the error"),
    ):
        if value is not None:
            parts.append(f"{label} {value!r}")
    jobs = " ".join(parts)
    times = [("since", query.since), ("before", query.before)]
    return jobs + "".join(f", created {word} {_moment(bound)}" for word, bound in times if bound is not None)


def _kind(query: Query) -> str:
    if query.ready is not None:
        return query.ready
    if not query.state:
        return "all"
    if set(query.state) == set(UNFINISHED):
        return "unfinished"
    return "ended" if set(query.state) == set(ENDED) else " or ".join(query.state)


def _moment(seconds: float) -> str:
    try:
        return f"{moment(seconds):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return f"{seconds:g} s since 1970"
