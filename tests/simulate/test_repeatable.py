"""A seed is the same run in each process, so that a failure of CI can be looked at elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulate.fleets import FLEETS

ROOT = Path(__file__).parents[2]
PROGRAM = """
import hashlib, sys
from tests.simulate.fleets import FLEETS
from treadle.testing import simulate
from treadle.testing.simulation import Simulation

def log(sim):
    text = "\\n".join(map(str, sim.entries))
    print(sim.case.seed, len(sim.entries), hashlib.sha256(text.encode()).hexdigest()[:16])

settings = FLEETS[sys.argv[1]]
simulate(**settings | {"invariants": [log]}, seeds=range(100, 150), storage=sys.argv[2])
"""


def logs(fleet: str, storage: str, hash_seed: str) -> list[str]:
    """A digest of the log of each seed, from a process that orders its sets in its own way."""
    env = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [sys.executable, "-c", PROGRAM, fleet, storage]
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("fleet", FLEETS)
@pytest.mark.parametrize("storage", ["memory", "sqlite"])
def test_a_seed_is_the_same_run_in_each_process(fleet: str, storage: str) -> None:
    first, second = logs(fleet, storage, "0"), logs(fleet, storage, "1")
    assert len(first) == 50
    assert [one for one, other in zip(first, second, strict=True) if one != other] == []
