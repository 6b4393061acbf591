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
        drifts = await core.storage.recount(repair)
    except Unsupported:  # Redis writes while it counts, which a look must not do
        return ok("counts", "not compared with the rows; `treadle doctor --repair` does that, and corrects them")
    if not drifts:
        return ok("counts", "the kept counts equal the rows")
    groups = plural(len(drifts), "kept count")
    if repair:
        return ok("repaired", f"corrected {groups}: {_some(drifts)}")
    return warn(
        "counts",
        f"{groups} differ from the rows, so statistics are wrong: {_some(drifts)}",
        "another program changed the rows, or Treadle has a defect: report it; `treadle doctor --repair` corrects them",
    )


def _some(drifts: tuple[CountDrift, ...]) -> str:
    texts = [
        f"{drift.kept} {drift.kind} jobs of task {drift.task!r} in queue {drift.queue!r}, in fact {drift.counted}"
        for drift in drifts[:NAMED]
    ]
    return "; ".join([*texts, "..."] if len(drifts) > NAMED else texts)
