"""The workflow of a public CI: its commands exist, and it runs every Python that the package claims."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / ".github/workflows").glob("*.y*ml"))
CLASSIFIERS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
SYSTEMS = ("ubuntu", "macos", "windows")
PYTHONS = ["3.11", "3.12", "3.13", "3.14", "3.15"]


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


def steps() -> Iterator[dict[str, Any]]:
    for path in FILES:
        for job in read(path)["jobs"].values():
            yield from job["steps"]


def claimed() -> list[str]:
    """The minor versions that the classifiers of pyproject.toml name."""
    return [text.rpartition(" ")[2] for text in CLASSIFIERS if re.search(r":: 3\.\d+$", text)]


def runs() -> list[dict[str, Any]]:
    """One entry for each job of the matrix of tests."""
    matrix = read(ROOT / ".github/workflows/ci.yml")["jobs"]["test"]["strategy"]["matrix"]
    square = [
        {"os": system, "python": python, "experimental": experimental}
        for system in matrix["os"]
        for python in matrix["python"]
        for experimental in matrix["experimental"]
    ]
    return [*square, *matrix["include"]]


def test_every_command_is_one_of_dev_py_with_files_that_exist() -> None:
    spec = importlib.util.spec_from_file_location("dev", ROOT / "dev.py")
    assert spec is not None
    assert spec.loader is not None
    dev = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(dev)
    commands = [step["run"].split() for step in steps() if "run" in step]
    assert {words[2] for words in commands} == {"check", "test", "docs"}
    for python, script, name, *rest in commands:
        assert (python, script) == ("python", "dev.py")
        assert name in dev.COMMANDS
        for word in set(rest) - {"--all"}:
            assert (ROOT / word).is_file(), word


@pytest.mark.parametrize("system", SYSTEMS)
def test_each_system_runs_each_python(system: str) -> None:
    found = [str(run["python"]) for run in runs() if run["os"] == f"{system}-latest"]
    assert sorted(found) == PYTHONS


def test_a_failure_on_a_python_that_the_package_claims_fails_the_run() -> None:
    must = {run["python"] for run in runs() if not run["experimental"]}
    assert must == set(claimed())
    least = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert least == f">={claimed()[0]}"


def test_workflows_read_only_and_name_versions_of_actions_and_no_package_index() -> None:
    for path in FILES:
        assert read(path)["permissions"] == {"contents": "read"}
        assert "http" not in path.read_text()
        for job in read(path)["jobs"].values():
            assert job["timeout-minutes"] <= 60
    for step in steps():
        assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|[0-9a-f]{40})", step.get("uses", "a/b@v1"))
