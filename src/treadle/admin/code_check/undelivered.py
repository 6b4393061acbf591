"""Reads the jobs of an outbox that no relay has delivered yet: they reach workers with the new code, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from treadle.admin.code_check.findings import Findings
from treadle.core.errors import StorageError, error_line
from treadle.core.model import NewJob
from treadle.outbox import Outbox

PAGE: Final = 5_000  # rows of one read


async def read(outbox: Outbox, most: int | None, look: Callable[[NewJob], None], findings: Findings) -> None:
    """Pass each job to `look`, the oldest `most` only if that is given. An outbox that cannot be read is a note: a
    check may have rights for the storage only."""
    after, seen = 0, 0
    findings.place = "in the outbox"
    try:
        while most is None or seen < most:
            limit = PAGE if most is None else min(PAGE, most - seen)
            page = await outbox.undelivered(after, limit)
            for _, id, job in page:
                if job is None:
                    _unreadable(id, findings)
                else:
                    look(job)
            if len(page) < limit:
                return
            after, seen = page[-1][0], seen + len(page)
    except StorageError as error:
        findings.add(
            "outbox",
            outbox.url,
            f"its jobs were not checked: {error_line(str(error))}",
            "give its URL with --outbox, or leave it out with --no-outbox",
            level="note",
        )
    finally:
        findings.place = None


def _unreadable(id: str, findings: Findings) -> None:
    findings.add(
        "outbox",
        "a row",
        "no job can be read from it",
        "`treadle storage relay list` shows it, `treadle storage relay delete` removes it",
        example=id,
        state="unreadable",
    )
