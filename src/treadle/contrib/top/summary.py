"""The figures at the top of the screen, and the state of the connection in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from treadle.cli.output import lasts, plural
from treadle.contrib.top.grid import Tone, spark
from treadle.contrib.top.reader import Outage, Snapshot
from treadle.core.clock import moment_text
from treadle.core.redaction import in_line

TILE: Final = 19  # cells of a tile, with the gap after it
STALE: Final = 10.0  # s: the age of older figures is shown


class Tile(Struct, frozen=True):
    """One figure: what it is, its value, and a detail."""

    label: str
    value: str
    detail: str
    tone: Tone = ""


def tiles(snapshot: Snapshot) -> list[Tile]:
    """The figures, the most important first."""
    overview = snapshot.overview
    totals, rates = overview.totals, overview.rates
    more = {name: "+" if name in totals.capped else "" for name in ("queued", "running", "blocked", "failed")}
    oldest = max((queue.oldest for queue in overview.queues if queue.oldest is not None), default=None)
    ended = None if rates.succeeded is None else rates.succeeded + (rates.failed or 0.0)
    return [
        Tile(
            "queued",
            f"{totals.queued:,}{more['queued']}",
            "none waits" if oldest is None else f"oldest {lasts(oldest)}",
            "strong",
        ),
        Tile(
            "running",
            f"{totals.running:,}{more['running']}",
            f"of {plural(totals.slots, 'slot')}" if totals.slots else "no worker",
            "busy" if totals.running else "dim",
        ),
        Tile("failed", f"{totals.failed:,}{more['failed']}", _grouped(snapshot), "bad" if totals.failed else "dim"),
        Tile(
            "blocked",
            f"{totals.blocked:,}{more['blocked']}",
            f"{totals.scheduled:,} scheduled",
            "warn" if totals.blocked else "dim",
        ),
        Tile("ended/s", "-" if ended is None else f"{ended:,.1f}", _runs(snapshot), "good" if ended else "dim"),
        _hour(snapshot),
    ]


def _runs(snapshot: Snapshot) -> str:
    rates = snapshot.overview.rates
    if rates.run_p95 is None:
        return "no metrics yet" if rates.succeeded is None else "none last minute"
    return f"95 % run {lasts(rates.run_p95)}"


def _grouped(snapshot: Snapshot) -> str:
    groups = len(snapshot.failures.groups)
    return "nothing failed" if not groups else plural(groups, "group")


def _hour(snapshot: Snapshot) -> Tile:
    """The last hour as a line of bars, three minutes in each."""
    hour = snapshot.hour
    if hour is None:
        return Tile("last hour", "-", "no metrics yet", "dim")
    ended = [good + bad for good, bad in zip(hour.succeeded, hour.failed, strict=True)]
    failed = sum(hour.failed)
    detail = f"{sum(ended):,} ended" + (f", {failed:,} failed" if failed else "")
    return Tile("last hour", spark(ended, TILE - 2), detail, "good")


def strip(snapshot: Snapshot) -> str:
    """The figures as one sentence, for a screen without room for tiles."""
    shown = [f"{tile.value} {tile.label}" for tile in tiles(snapshot)[:5]]
    return " · ".join(shown)


def link(outage: Outage | None, age: float | None, pause: float, now: float) -> tuple[str, Tone]:
    """The state of the connection in a few words. `now`: wall time."""
    if outage is not None:
        return f"✕ no storage for {lasts(max(0.0, now - outage.began))}", "bad"
    if age is None:
        return "◌ connecting", "warn"
    if age >= max(STALE, 2 * pause):
        return f"◌ figures are {lasts(age)} old", "warn"
    return f"● live, every {lasts(pause)}", "good"


def alert(outage: Outage, has_figures: bool, now: float) -> str:
    """The sentence about an outage."""
    lasted = lasts(max(0.0, now - outage.began))
    kept = " The figures are the last ones." if has_figures else ""
    return f"Storage unavailable since {moment_text(outage.began)} ({lasted}): {in_line(outage.reason)}.{kept}"


def notices(snapshot: Snapshot, most: int) -> Sequence[tuple[str, Tone]]:
    """The notices that fit into `most` lines, and how many more there are."""
    lines: list[tuple[str, Tone]] = []
    for notice in snapshot.overview.notices:
        tone: Tone = "bad" if notice.level == "error" else "warn" if notice.level == "warning" else "dim"
        sign = {"error": "✕", "warning": "!", "info": "·"}[notice.level]
        lines.append((in_line(f"{sign} {notice.text} {notice.advice}"), tone))
    if len(lines) > most > 0:
        hidden = len(lines) - most + 1
        lines[most - 1 :] = [(f"  and {plural(hidden, 'more notice')}", "dim")]
    return lines[: max(0, most)]
