"""`treadle audit`: lists who did what."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from treadle.cli.output import age, as_json, document, iso, note, table
from treadle.cli.target import Target, targeted
from treadle.cli.watch import Listing

if TYPE_CHECKING:
    from treadle.admin.audit import AuditEntry

COLUMNS = ("when", "by", "from", "act", "target", "done", "result")


@click.group(cls=Listing)
def audit() -> None:
    """List who cancelled, retried, paused or changed what."""


@audit.command("list")
@targeted
@click.option(
    "--limit", "-n", type=click.IntRange(1, 1_000), default=50, show_default=True, help="Number of entries per page."
)
@click.option("--cursor", help="Cursor printed at the end of the previous page.")
@as_json
def list_(target: Target, limit: int, cursor: str | None, json_: bool) -> None:
    """List one page of the acts of operators, the newest first. Entries are kept for 90 days."""
    page = target.run(lambda app: app.audit.list(limit=limit, cursor=cursor))
    if json_:
        document([_plain(entry) for entry in page.entries])
    else:
        now = target.app._core.now()
        table(COLUMNS, [_line(entry, now) for entry in page.entries], "no acts are recorded", right=("done",))
    if page.cursor:
        note(f"next page: --cursor {page.cursor}")


def _line(entry: AuditEntry, now: float) -> tuple[object, ...]:
    if entry.error is not None:
        result = entry.error
    elif entry.ended_at is None:
        result = "open: under way, or its process died"
    else:
        result = ", ".join(f"{count:,} left: {reason}" for reason, count in (entry.passed_over or {}).items())
    about = f"{entry.target} ({entry.filter})" if entry.target and entry.filter else entry.target or entry.filter or ""
    return age(entry.at, now), entry.by, entry.source, entry.act, _cut(about), entry.done, _cut(result)


def _cut(text: str, most: int = 80) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _plain(entry: AuditEntry) -> dict[str, object]:
    return {
        "id": entry.id,
        "at": iso(entry.at),
        "ended_at": iso(entry.ended_at),
        "by": entry.by,
        "from": entry.source,
        "act": entry.act,
        "target": entry.target,
        "filter": entry.filter,
        "done": entry.done,
        "passed_over": entry.passed_over,
        "error": entry.error,
        "ids": list(entry.ids),
    }
