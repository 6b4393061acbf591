"""Finds jobs by a text in their task, arguments, error, labels or key, or by the beginning of their id.

A search decodes rows in Python, so it looks at a bounded number of rows and says how far it got. The text is a plain
substring, compared without regard to case.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from treadle.admin import stored_values
from treadle.admin.audit import Receipt
from treadle.core import ids
from treadle.core.claim_ids import worker_name
from treadle.core.long_numbers import has_digits
from treadle.core.model import Record
from treadle.core.query_model import Page, Query
from treadle.core.similar_names import near
from treadle.serialization import has_mark
from treadle.storage import cursor_of, matches, moment_of
from treadle.storage.contract import Storage
from treadle.storage.row_rules import within

STEP: Final = 500  # rows of one call: a few milliseconds, after which other work gets its turn
LOOKED: Final = (
    1_000  # rows that one call looks at: storages find the last of them first, even if a page is full before
)
LARGE: Final = 65_536  # characters of a payload that is decoded; longer arguments are not searched
VALUES: Final = 100  # commas and brackets in searched arguments, and one more for each 64 characters
NUMBER: Final = 300  # digits of a number in them
PART: Final = 100_000  # characters that are searched before other work gets its turn: a millisecond
DEEPEST: Final = 100  # levels of arguments that are searched
PREFIX: Final = 8  # characters of an id with which a search finds it: 32 bits of its time
UUID_LENGTH: Final = 36
NEAR: Final = 1_000  # rows among which a similar id is looked for
SLACK: Final = 60.0  # s by which the clock that made an id may differ from the storage's
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{0,4}){0,4}|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]*")
_ESCAPED: Final = re.compile(r"\\u00[2-7]")  # an escaped character of ASCII
_SIMPLE: Final = re.compile(r"[\w .@:+-]+", re.ASCII)  # JSON writes these characters as they are

Hide = Callable[[Any], Any]
"""Replaces the secrets in decoded arguments, or in the text of an error."""


class Search:
    """A text to look for.

    hide      applied to arguments and errors first, so that a search cannot find what may not be shown
    payloads  whether arguments and errors are searched
    shown     returns a row as people may see it; only what is in there is found
    """

    def __init__(
        self,
        text: str,
        hide: Hide | None = None,
        payloads: bool = True,
        shown: Callable[[Record], Record] | None = None,
    ) -> None:
        self.text, self._folded = text, text.casefold()
        self._hide, self._payloads, self._shown = hide, payloads, shown
        self._simple = _SIMPLE.fullmatch(text) is not None and "=" not in text

    def matches(self, row: Record) -> bool:
        job = row.job
        if self._in(job.task) or any(map(self._in, job.labels)) or self._in((job.key or "").partition(" ")[2]):
            return True
        if len(self.text) >= PREFIX and job.id.startswith(self.text):
            return True
        if not self._payloads or not self._in_payloads(row):
            return False
        return self._shown is None or self._in_payloads(self._shown(row))

    def _in_payloads(self, row: Record) -> bool:
        return self._in_error(row.error) or self._in_arguments(row.job.payload)

    def _in_error(self, error: str | None) -> bool:
        if error is None or not self._in(error):
            return False
        return self._hide is None or self._in(self._hide(error))

    def _in(self, text: str) -> bool:
        return self._folded in text.casefold()

    def _in_arguments(self, payload: str) -> bool:
        if len(payload) > LARGE:
            return False
        if self._simple and not _ESCAPED.search(payload) and not has_mark(payload) and not self._in(payload):
            return False  # 0.3 us instead of 8: most rows need not be decoded
        if sum(map(payload.count, ",[{")) > VALUES + len(payload) // 64 or has_digits(payload, NUMBER):
            return False
        args, kwargs = stored_values.arguments(payload)
        if self._hide is not None:
            args, kwargs = self._hide(list(args)), self._hide(kwargs)
        return any(map(self._in, _texts([*args], ""))) or any(map(self._in, _texts(kwargs, "")))


def _texts(value: Any, name: str) -> Iterator[str]:
    """The texts of a value that are searched: `name=value` for each field of a mapping, and each item of a list."""
    look = [(value, name, 0)]
    while look:
        part, name, depth = look.pop()
        if isinstance(part, str):
            yield name + part
        elif depth > DEEPEST:
            continue
        elif isinstance(part, Mapping):
            look += [(below, f"{key}=", depth + 1) for key, below in part.items()]
        elif isinstance(part, list | tuple | set | frozenset):
            yield name
            look += [(below, "", depth + 1) for below in part]
        else:
            yield name + _text(part)


def _text(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return stored_values.shown(value, "")


def is_run_by(row: Record, worker: str) -> bool:
    """Whether the worker with this name claimed the row last; a row has the name and the number of the claim."""
    return row.worker is not None and worker in (row.worker, worker_name(row.worker))


async def find(storage: Storage, query: Query, search: Search | None, worker: str | None = None) -> Page:
    """One page of the jobs that match the query, contain the text and were claimed last by the worker.

    The call looks at `query.scan` rows at most, by default as many as the storage's capabilities say. A page may have
    fewer rows than `query.limit` and still a cursor. A text that is an id, or the beginning of one, returns its rows
    alone.
    """
    if search is not None and query.cursor is None and (direct := await _by_id(storage, query, search.text)):
        return Page(tuple(row for row in direct if worker is None or is_run_by(row, worker)), scanned=len(direct))
    budget = scan_of(storage, query.scan)
    records: list[Record] = []
    scanned, cursor, seen = 0, query.cursor, 0
    while True:
        page = await storage.find(replace(query, cursor=cursor, limit=STEP, scan=min(budget, LOOKED)))
        examined = page.scanned if page.scanned is not None else len(page.records)
        scanned, budget = scanned + examined, budget - examined
        for row in page.records:
            if search is not None and (seen := seen + len(row.job.payload) + len(row.error or "")) > PART:
                seen = 0
                await asyncio.sleep(0)
            if (worker is not None and not is_run_by(row, worker)) or (search is not None and not search.matches(row)):
                continue
            records.append(row)
            if len(records) == query.limit:
                is_last = page.cursor is None and row is page.records[-1]
                cursor = None if is_last else cursor_of(row, query.order)
                return Page(tuple(records), cursor, scanned=scanned, scanned_to=moment_of(row, query.order))
        cursor = page.cursor
        if cursor is None or budget <= 0 or not examined:
            return Page(tuple(records), cursor, scanned=scanned, scanned_to=page.scanned_to)
        await asyncio.sleep(0)


def scan_of(storage: Storage, scan: int | None) -> int:
    """The rows that a bounded query looks at."""
    return storage.capabilities.scan if scan is None else scan


async def _by_id(storage: Storage, query: Query, text: str) -> tuple[Record, ...]:
    """The job with this id, or those whose ids begin with the text; ids that Treadle makes begin with their time."""
    if not ids.VALID.fullmatch(text):
        return ()
    [row] = await storage.get([text])
    if row is not None:
        return (row,) if matches(row, query) else ()
    by_time = _made_with(query, text)
    if by_time is None:
        return ()
    page = await storage.find(replace(by_time, scan=scan_of(storage, query.scan)))
    return tuple(row for row in page.records if row.job.id.startswith(text))[: query.limit]


def _made_with(query: Query, text: str) -> Query | None:
    """The query for the jobs created at the time with which an id begins; None if the text is no such id."""
    if not _UUID.fullmatch(text):
        return None
    digits = text.replace("-", "")[:12]
    first = int(digits.ljust(12, "0"), 16) / 1000 - SLACK
    last = int(digits.ljust(12, "f"), 16) / 1000 + SLACK
    return replace(
        query,
        since=first if query.since is None else max(first, query.since),
        before=last if query.before is None else min(last, query.before),
        limit=STEP,
    )


async def near_id(storage: Storage, id: str, queues: Sequence[str] = ()) -> str:
    """The text "; did you mean 'x'?" for an unknown id, or "" if no id of about the same time is similar."""
    query = _made_with(Query(), id[:UUID_LENGTH].lower())
    if query is None:
        return ""
    page = await storage.find(replace(query, scan=NEAR))
    return near(id, {row.id for row in page.records if row.job.task and within(queues, row.job.queue)})


@dataclass(frozen=True, kw_only=True, slots=True)
class JobScope:
    """Which jobs a view of `app.jobs` shows and changes, and what its searches may find. The default is all jobs, and
    all that is stored of them.

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


ALL: Final = JobScope()
