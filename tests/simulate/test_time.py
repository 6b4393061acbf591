"""The rules of time accept histories that keep them, and find sleeps that end early and jobs that start late."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.simulate.fleets import FLEETS
from tests.simulate.late_mutants import EARLY, LATE
from tests.simulate.promptness import due_jobs_start_soon, gap, longest
from tests.simulate.test_history import at, lived, row, rules
from treadle.core.model import Record
from treadle.testing import SimulationFailed, simulate
from treadle.testing.history import Entry
from treadle.testing.simulation import KINDS, Fault

SOON = 200  # seeds within which each defect is found
STEADY = tuple(kind for kind in KINDS if kind != "clock")  # the rules of time leave out runs with steps of the clock


def slept(version: int, until: float) -> tuple[list[Entry], list[Record]]:
    """A job that was claimed at 0.5, slept for 5 s from 1.0 on, and found that over in this version."""
    entries = [
        *lived(version=version, begin=until - 0.1, end=until + 0.1),
        at(0.5, "claimed", version=1),
        at(1.0, "waits", version=1, name="nap", seconds=5.0),
        at(until, "waited", version=version, name="nap"),
    ]
    lost = version == 2
    return entries, [replace(row(begin=until - 0.1, end=until + 0.1), version=version + 1, lost=int(lost))]


@pytest.mark.parametrize(("until", "broken"), [(6.0, []), (5.9, ["wait"])])
def test_a_sleep_ends_when_its_time_is_over(until: float, broken: list[str]) -> None:
    assert rules(*slept(3, until)) == broken


@pytest.mark.parametrize(("until", "broken"), [(5.6, []), (5.4, ["wait"])])
def test_the_time_of_a_lost_run_begins_with_its_claim(until: float, broken: list[str]) -> None:
    assert rules(*slept(2, until)) == broken


def test_a_later_run_returns_from_a_sleep_at_once() -> None:
    entries, rows = slept(3, 6.0)
    again = [at(7.0, "waits", version=5, name="nap", seconds=5.0), at(7.0, "waited", version=5, name="nap")]
    assert rules([*entries, *again], rows) == []


def test_a_run_may_continue_the_sleep_of_a_lost_one() -> None:
    entries, rows = slept(4, 6.0)
    continued = at(4.0, "waits", version=2, name="nap", seconds=5.0)
    assert rules([*entries, continued], rows) == []


def test_an_act_may_end_a_sleep() -> None:
    entries, rows = slept(3, 2.0)
    assert rules([*entries, at(1.5, "act", name="settle")], rows) == []


def test_a_sleep_is_not_judged_if_the_clock_was_set() -> None:
    entries, rows = slept(3, 2.0)
    assert rules([*entries, at(1.5, "clock", "", seconds=60.0)], rows) == []


@pytest.mark.parametrize(
    ("spans", "idle"), [([], 10.0), ([(3.0, 4.0)], 6.0), ([(3.0, 3.0), (1.0, 5.0)], 5.0), ([(-1.0, 20.0)], 0.0)]
)
def test_idle_time_has_no_part_of_a_reason(spans: list[tuple[float, float]], idle: float) -> None:
    assert gap(0.0, 10.0, spans) == idle


def test_each_fault_allows_more_idle_time() -> None:
    assert longest([Fault("stall", seconds=3.0)], 5.0) == longest([], 5.0) + 23.0


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(EARLY))
def test_a_sleep_or_a_wait_that_ends_early_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, fleet = EARLY[name]
    plant(monkeypatch)
    with pytest.raises(SimulationFailed) as failure:
        simulate(**FLEETS[fleet] | {"faults": STEADY}, seeds=SOON, shrink=False)
    assert {each.rule for each in failure.value.found.violations} == {"wait"}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(LATE))
def test_a_job_that_starts_late_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, fleet = LATE[name]
    plant(monkeypatch)
    settings = FLEETS[fleet] | {"faults": STEADY, "invariants": [due_jobs_start_soon]}
    with pytest.raises(SimulationFailed, match=due_jobs_start_soon.__name__):
        simulate(**settings, seeds=SOON, shrink=False)
