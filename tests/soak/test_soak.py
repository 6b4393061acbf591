"""The soak in a short form on each storage, and the proof that its checker finds planted faults."""

from __future__ import annotations

import random

import pytest

from tests.faults.stages import SqliteStage, staged
from tests.soak.nemesis import STAGES
from tests.soak.planted import FAULTS
from tests.soak.trial import trial

SHORT = 10.0  # seconds of faults
GIVE_UP = 8.0  # seconds without an ending after which the remaining jobs of a planted fault count as stuck
SEED = 3


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["sqlite", "postgres", "valkey"])
async def test_a_fleet_under_faults_keeps_its_promises(name: str) -> None:
    async with staged(STAGES[name]) as stage:
        verdict = await trial(stage, random.randrange(1_000_000), SHORT, print, clocks=False)
        assert verdict.ok, str(verdict)
        assert verdict.counts["acknowledged"] > 20


# Planted fault -> the rules, one of which must find it.
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
}
IN_THE_SUITE = ("followups-lost", "ticked-twice", "checkpoints-lost", "job-lost", "ending-lost")


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
