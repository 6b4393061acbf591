"""How many warnings the doctor would give, of those that the counts show: for a figure at its name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from treadle.server.doctor import bounds, common

if TYPE_CHECKING:
    from treadle.app.core import AppCore
    from treadle.core.query_model import Stats
    from treadle.server.doctor.common import Check

NAMES: Final = frozenset({"queues", "workers", "tasks", "paused", "limits", "failed", "bounds", "moved"})
"""The checks that need nothing but the counts, and the one that each look makes."""


def warnings(core: AppCore, stats: Stats) -> int:
    """The number of warnings among the checks with these names."""
    checks = (*common.of_counts(core, stats, bool(core.tasks)), *common.failed(stats), *bounds.checks(stats))
    return sum(check.verdict != "ok" for check in checks)


def others(checks: Iterable[Check]) -> int:
    """The number of warnings and failures among the other checks."""
    return sum(check.verdict != "ok" and check.name not in NAMES for check in checks)
