"""The Django site among the examples, and its Celery twin: both pass their tests, and ours is not longer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SITE = Path(__file__).parents[3] / "examples/django_site"
TWIN = SITE / "celery_twin"


def lines(folder: Path) -> int:
    """Lines of code, without blank lines and comments."""
    found = [path for path in folder.rglob("*.py") if folder == TWIN or TWIN not in path.parents]
    texts = [line.strip() for path in found for line in path.read_text().splitlines()]
    return sum(bool(line) and not line.startswith("#") for line in texts)


@pytest.mark.parametrize("folder", [SITE, TWIN], ids=["treadle", "celery"])
def test_the_tests_of_the_site_pass(folder: Path) -> None:
    command = [sys.executable, "-W", "error::ResourceWarning", "manage.py", "test", "--noinput"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=os.environ, timeout=200)
    assert ran.returncode == 0, ran.stderr
    assert "Ran 4 tests" in ran.stderr


def test_the_site_is_no_longer_than_its_twin() -> None:
    assert lines(SITE) <= lines(TWIN)
