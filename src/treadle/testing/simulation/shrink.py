"""Shrinks a failing case: fewer faults, fewer workers and a smaller size, while the same rule is still broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from treadle.testing.simulation.fleet import Case, Found

TRIES = 200  # most runs


def shrunk(found: Found, run: Callable[[Case], Found]) -> Found:
    """The smallest case found that breaks one of the rules of the first one."""
    rules, tries, again = {violation.rule for violation in found.violations}, 0, True
    while again:
        again = False
        for case in _smaller(found.case):
            if tries == TRIES:
                return found
            tries += 1
            other = run(case)
            if rules & {violation.rule for violation in other.violations}:
                found, again = other, True
                break
    return found


def _smaller(case: Case) -> Iterator[Case]:
    """Smaller cases, those with the largest reductions first."""
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
        yield replace(case, workers=workers, faults=tuple(fault for fault in case.faults if fault.who < workers))
    for index in range(len(case.faults)):
        yield replace(case, faults=case.faults[:index] + case.faults[index + 1 :])
