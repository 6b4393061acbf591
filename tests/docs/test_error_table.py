"""The table of errors in the guide names every error that a user may catch, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import treadle.errors
import treadle.execution.context
import treadle.policy.retry
import treadle.testing

PAGE = Path(__file__).resolve().parents[2] / "docs/guides/troubleshooting.md"
# base classes only, never raised themselves; the page names them
BASES = {"TreadleError", "StorageError", "JobNotDone", "ResourceFailed"}


def test_every_error_has_a_row() -> None:
    places = (treadle, treadle.errors, treadle.execution.context, treadle.policy.retry, treadle.testing)
    raised = {
        name
        for place in places
        for name, found in dict(vars(place)).items()  # a look-up adds the names that are imported late
        if isinstance(found, type) and issubclass(found, treadle.TreadleError | UserWarning)
    }
    table = PAGE.read_text().partition("## Errors\n")[2]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == raised - BASES
    assert all(re.search(rf"`(treadle\.)?{name}`", table) for name in BASES)
