"""Compares the kept counts of a storage with its rows, and corrects them for `treadle doctor --repair`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.core.errors import Unsupported
from treadle.core.words import plural
from treadle.server.doctor.common import Check, ok, warn

if TYPE_CHECKING:
    from treadle.app.core import AppCore
    from treadle.core.query_model import CountDrift

NAMED = 3  # groups that a warning names


async def kept_counts(core: AppCore, repair: bool) -> Check:
    """Reads every row, and holds up no other call."""
    try:
        found = await core.storage.recount(repair)
    except Unsupported:  # Redis writes while it counts, which a look must not do
        return ok("counts", "not compared with the rows; `treadle doctor --repair` does that, and corrects them")
    if not found:
        return ok("counts", "the kept counts equal the rows")
    groups = plural(len(found), "kept count")
    if repair:
        return ok("repaired", f"corrected {groups}: {_some(found)}")
    return warn(
        "counts",
        f"{groups} differ from the rows, so statistics are wrong: {_some(found)}",
        "another program changed the rows, or Treadle has a defect: report it; `treadle doctor --repair` corrects them",
    )


def _some(found: tuple[CountDrift, ...]) -> str:
    words = [
        f"{each.kept} {each.kind} jobs of task {each.task!r} in queue {each.queue!r}, in fact {each.counted}"
        for each in found[:NAMED]
    ]
    return "; ".join([*words, "..."] if len(found) > NAMED else words)
