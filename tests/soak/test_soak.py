"""The soak in a short form on each storage, and the proof that its checker finds planted faults."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import treadle
from tests.faults.stages import SqliteStage, staged
from tests.soak.nemesis import STAGES
from tests.soak.planted import FAULTS
from tests.soak.skew import MachineClock
from tests.soak.trial import trial

pytestmark = pytest.mark.slow

SHORT = 10.0  # seconds of faults
GIVE_UP = 8.0  # seconds without an ending after which the remaining jobs of a planted fault count as stuck
SEED = 3
SOURCE = Path(treadle.__file__).parents[1]


def make_version(folder: Path) -> None:
    """Another version with the same code. It has its own functions in PostgreSQL, and its own scripts in Valkey."""
    shutil.copytree(SOURCE, folder, dirs_exist_ok=True)
    for path in (*folder.glob("**/*.sql"), *folder.glob("**/*.lua")):
        path.write_text(path.read_text() + "\n-- of another version\n")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["sqlite", "postgres", "valkey"])
async def test_a_fleet_of_two_versions_under_faults_keeps_its_promises(name: str, tmp_path: Path) -> None:
    make_version(tmp_path)
    async with staged(STAGES[name]) as stage:
        verdict = await trial(stage, random.randrange(1_000_000), SHORT, print, clocks=False, other_version=tmp_path)
        assert verdict.ok, str(verdict)
        assert verdict.counts["acknowledged"] > 20
        assert verdict.counts["other version"] > 0


def test_the_clock_of_the_machine_steps_for_each_process_that_follows_it(tmp_path: Path) -> None:
    clock = MachineClock(tmp_path / "clock")
    program = (
        "import sys, time; from tests.soak import skew; skew.follow(sys.argv[1]); print(time.time() - skew.true(),"
        " skew.most_ahead())"
    )

    def seen() -> tuple[float, float]:
        command = [sys.executable, "-c", program, str(clock.path)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        return round(float(said[0]), 1), float(said[1])

    assert [clock.set(ahead) for ahead in (15.0, -3.0)] == [15.0, -18.0]
    assert seen() == (-3.0, 15.0)  # it was 15 s ahead a moment ago
    assert clock.set(0.0) == 3.0
    assert seen() == (0.0, 15.0)


# fault -> the rules of which one has to find it
PLANTED = {
    "version-ignored": {"value", "overlap", "fence"},
    "slot-ignored": {"slots", "strict"},
    "followups-lost": {"expected", "value"},
    "ticked-twice": {"tick"},
    "checkpoints-lost": {"step"},
    "job-lost": {"acknowledged"},
    "key-ignored": {"asked"},
    "join-early": {"asked"},
    "claimed-again": {"fence", "value"},
    "ending-lost": {"value"},
    "priority-ignored": {"asked"},
    "lane-ignored": {"asked"},
    "order-ignored": {"order", "priority", "lane"},
    "lease-short": {"overlap"},
    "rate-ignored": {"rate"},
    "bound-ignored": {"bound"},
}
IN_THE_SUITE = ("followups-lost", "job-lost")  # 10 s of processor time each; `dev.py soak tests` runs all


def test_each_planted_fault_has_its_rules() -> None:
    assert PLANTED.keys() == FAULTS.keys()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "fault", [name if name in IN_THE_SUITE else pytest.param(name, marks=pytest.mark.soak) for name in PLANTED]
)
async def test_a_planted_fault_is_found(fault: str) -> None:
    async with staged(SqliteStage) as stage:
        verdict = await trial(stage, SEED, SHORT, print, plant=fault, drain=GIVE_UP)
    assert {found.rule for found in verdict.violations} & PLANTED[fault], str(verdict)
