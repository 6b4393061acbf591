"""`treadle storage audit`: lists who did what."""

from __future__ import annotations

import click

from treadle.admin.audit import AuditEntry
from treadle.cli.group import Group
from treadle.cli.listing import listed, next_page, paged, picked
from treadle.cli.output import age, as_json, iso, shortened
from treadle.cli.target import Target, targeted

COLUMNS = ("when", "by", "from", "act", "target", "done", "result")


@click.group(cls=Group, default="list")
def audit() -> None:
    """List who cancelled, retried, paused or changed what."""


@audit.command("list")
@targeted
@paged("entries", 50, 1_000)
@as_json
def list_(target: Target, limit: int, cursor: str | None, json_: bool) -> None:
    """List one page of the acts of operators, the newest first. Entries are kept for 90 days."""
    page = target.run(lambda app: app.audit.list(limit=limit, cursor=cursor))
    now = target.app._core.now()
    rows = [_line(entry, now) for entry in page.entries]
    listed(json_, [_plain(entry) for entry in page.entries], COLUMNS, rows, "no acts are recorded", right=("done",))
    next_page(page.cursor)


def _line(entry: AuditEntry, now: float) -> tuple[object, ...]:
    if entry.error is not None:
        result = entry.error
    elif entry.ended_at is None:
        result = "open: under way, or its process died"
    else:
        result = ", ".join(f"{count:,} left: {reason}" for reason, count in (entry.passed_over or {}).items())
    about = f"{entry.target} ({entry.filter})" if entry.target and entry.filter else entry.target or entry.filter or ""
    return (
        age(entry.at, now),
        entry.by,
        entry.source,
        entry.act,
        shortened(about, 80),
        entry.done,
        shortened(result, 80),
    )


def _plain(entry: AuditEntry) -> dict[str, object]:
    times = {"at": iso(entry.at), "ended_at": iso(entry.ended_at)}
    parts = picked(entry, "act", "target", "filter", "done", "passed_over", "error")
    return {"id": entry.id, **times, "by": entry.by, "from": entry.source, **parts, "ids": list(entry.ids)}
