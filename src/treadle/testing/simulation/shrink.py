"""A failure made smaller: fewer faults, fewer workers, less to do, as long as the same rule is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from treadle.testing.simulation.fleet import Case, Found

TRIES = 200  # runs at most


def shrunk(found: Found, run: Callable[[Case], Found]) -> Found:
    """The smallest case met that breaks a rule the first one broke."""
    rules, tries, again = {each.rule for each in found.violations}, 0, True
    while again:
        again = False
        for case in _smaller(found.case):
            if tries == TRIES:
                return found
            tries += 1
            other = run(case)
            if rules & {each.rule for each in other.violations}:
                found, again = other, True
                break
    return found


def _smaller(case: Case) -> Iterator[Case]:
    """Cases with a little less, the boldest first."""
    if case.faults:
        yield replace(case, faults=())
    half = len(case.faults) // 2
    if half:
        yield replace(case, faults=case.faults[:half])
        yield replace(case, faults=case.faults[half:])
    for size in sorted({1, case.size // 2, case.size - 1}):
        if 0 < size < case.size:
            yield replace(case, size=size)
    if case.workers > 1:
        workers = case.workers - 1
        yield replace(case, workers=workers, faults=tuple(each for each in case.faults if each.who < workers))
    for at in range(len(case.faults)):
        yield replace(case, faults=case.faults[:at] + case.faults[at + 1 :])
