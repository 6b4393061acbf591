"""The wheel and the source distribution: what is in them, and that Treadle works where only the wheel is installed."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest

from tools import interpreters

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NAME, VERSION = PROJECT["name"], PROJECT["version"]
UV = str(Path(sys.executable).with_name("uv"))
FOUND = interpreters.found()
NEEDED = {re.split(r"[<>=;! ]", need)[0] for need in PROJECT["dependencies"]}
WITH_EXTRAS = tuple(
    f"treadle.{name}"
    for name in (
        *("blobs.bucket", "blobs.s3", "contrib", "integrations"),
        *("outbox", "ports", "server", "storage.http", "storage.postgres", "storage.redis"),
        *("testing",),
    )
)

INSIDE = """
import importlib, importlib.metadata, importlib.resources, json, pkgutil, sys
import treadle
missing = {}
for info in pkgutil.walk_packages(treadle.__path__, "treadle.", onerror=lambda name: None):
    if info.name.endswith(".__main__"):
        continue
    try:
        importlib.import_module(info.name)
    except ImportError as error:
        while error.name is None and error.__context__ is not None:
            error = error.__context__
        missing[info.name] = (error.name or str(error)).partition(".")[0]
files = importlib.resources.files("treadle")
print(json.dumps({
    "missing": missing,
    "version": treadle.__version__,
    "file": treadle.__file__,
    "typed": files.joinpath("py.typed").is_file(),
    "dashboard": files.joinpath("server/dashboard/static/index.html").is_file(),
    "plugin": [each.value for each in importlib.metadata.entry_points(group="pytest11")],
}))
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the wheel and the source distribution of the working tree."""
    folder = tmp_path_factory.mktemp("dist")
    build(ROOT, folder)
    return folder


def build(source: Path, into: Path, *options: str) -> None:
    run(UV, "build", "--quiet", "--offline", "--no-build-isolation", *options, "--python", sys.executable,
        "--out-dir", str(into), str(source))  # fmt: skip


def run(*command: str, cwd: Path = ROOT, code: int = 0, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def wheel_of(dist: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(dist / f"{NAME}-{VERSION}-py3-none-any.whl") as wheel:
        return {name: wheel.read(name) for name in wheel.namelist() if not name.endswith("/")}


def sdist_of(dist: Path) -> dict[str, bytes]:
    with tarfile.open(dist / f"{NAME}-{VERSION}.tar.gz") as sdist:
        found = {each.name: sdist.extractfile(each) for each in sdist.getmembers() if each.isfile()}
        return {name: file.read() for name, file in found.items() if file is not None}


def sources() -> set[str]:
    """The files of the package that git knows or would add."""
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", "src").splitlines()
    return {name.removeprefix("src/") for name in listed if (ROOT / name).is_file()}


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(dist: Path) -> None:
    wheel = wheel_of(dist)
    info = f"{NAME}-{VERSION}.dist-info"
    assert {name for name in wheel if not name.startswith(info)} == sources()
    assert {name.removeprefix(f"{info}/") for name in wheel if name.startswith(info)} == {
        "METADATA",
        "RECORD",
        "WHEEL",
        "entry_points.txt",
        "licenses/LICENSE",
    }
    assert wheel[f"{info}/licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()
    kinds = {Path(name).suffix for name in wheel}
    assert kinds >= {".sql", ".lua", ".js", ".css", ".typed"}


def test_the_metadata_agrees_with_pyproject(dist: Path) -> None:
    wheel = wheel_of(dist)
    info = f"{NAME}-{VERSION}.dist-info"
    metadata = Parser().parsestr(wheel[f"{info}/METADATA"].decode())
    assert (metadata["Name"], metadata["Version"]) == (NAME, VERSION)
    assert metadata["License-Expression"] == PROJECT["license"]
    assert metadata["Requires-Python"] == PROJECT["requires-python"]
    assert set(metadata.get_all("Classifier", [])) == set(PROJECT["classifiers"])
    assert set(metadata.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])
    assert "# Treadle" in str(metadata.get_payload())
    entries = configparser.ConfigParser()
    entries.read_string(wheel[f"{info}/entry_points.txt"].decode())
    assert dict(entries["console_scripts"]) == PROJECT["scripts"]
    assert dict(entries["pytest11"]) == PROJECT["entry-points"]["pytest11"]


def test_neither_archive_contains_a_path_of_this_machine(dist: Path) -> None:
    folders = {str(ROOT), str(Path.home()), sys.base_prefix} - {"/", "/root", "/usr"}
    for name, content in {**wheel_of(dist), **sdist_of(dist)}.items():
        for folder in folders:
            assert folder.encode() not in content, name


def test_the_source_distribution_builds_the_same_wheel(dist: Path, tmp_path: Path) -> None:
    names = {name.partition("/")[2] for name in sdist_of(dist)}
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"LICENSE", "PKG-INFO", "README.md", "pyproject.toml", "pyproject.toml.orig", "src"}
    with tarfile.open(dist / f"{NAME}-{VERSION}.tar.gz") as sdist:
        sdist.extractall(tmp_path, filter="data")
    build(tmp_path / f"{NAME}-{VERSION}", tmp_path / "again", "--wheel")
    assert wheel_of(tmp_path / "again") == wheel_of(dist)


def test_the_classifiers_name_the_supported_pythons() -> None:
    """One for each version that the workflow of the public CI runs, see test_workflows.py. A version that nobody has
    run the tests on must not be named."""
    named = {text.rpartition(" ")[2] for text in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", text)}
    least = PROJECT["requires-python"].removeprefix(">=")
    assert min(named, key=_number) == least
    numbers = sorted(map(_number, named))
    assert numbers == list(range(numbers[0], numbers[-1] + 1))


def _number(version: str) -> int:
    return int(version.partition(".")[2])


@pytest.mark.parametrize("minor", ["3.11", "3.12", "3.13", "3.14", "3.15"])
def test_an_environment_with_the_wheel_alone_runs_jobs(minor: str, dist: Path, tmp_path: Path) -> None:
    if minor not in FOUND:
        pytest.skip(f"there is no Python {minor} on this machine")
    env = tmp_path / "env"
    programs = env / ("Scripts" if sys.platform == "win32" else "bin")
    python, treadle = str(programs / "python"), str(programs / "treadle")
    run(UV, "venv", "--quiet", "--python", str(FOUND[minor]), str(env))
    wheel = dist / f"{NAME}-{VERSION}-py3-none-any.whl"
    pins = ("--constraint", str(ROOT / "requirements/dev.txt"), "--only-binary", ":all:")
    run(UV, "pip", "install", "--quiet", "--python", python, *pins, str(wheel))

    found = json.loads(run(python, "-I", "-W", "error", "-c", INSIDE, cwd=tmp_path))
    assert found["version"] == VERSION
    assert Path(found["file"]).is_relative_to(env)
    assert found["typed"]
    assert found["dashboard"]
    assert found["plugin"] == ["treadle.testing.plugin"]
    for module, name in found["missing"].items():
        assert name not in {"treadle", *sys.stdlib_module_names, *NEEDED}, f"{module} cannot import {name}"
        assert module.startswith(WITH_EXTRAS), f"{module} needs {name}, which is no dependency of Treadle"
    assert run(treadle, "--version").strip() == f"treadle {VERSION}"
    if sys.platform != "win32":
        assert "0 failed, 0 lost, 0 missing" in run(treadle, "demo", cwd=tmp_path, TMPDIR=str(tmp_path))


def test_the_first_steps_of_a_new_project_need_no_index_with_treadle(dist: Path, tmp_path: Path) -> None:
    """`treadle init` in an environment with the wheel; its steps in another, new one. pip's own options are added."""
    made, new = tmp_path / "made", tmp_path / "new"
    programs = "Scripts" if sys.platform == "win32" else "bin"
    pins = ("--constraint", str(ROOT / "requirements/dev.txt"), "--only-binary", ":all:")
    for env in (made, new):
        run(UV, "venv", "--quiet", "--python", sys.executable, str(env))
    wheel = dist / f"{NAME}-{VERSION}-py3-none-any.whl"
    run(UV, "pip", "install", "--quiet", "--python", str(made / programs / "python"), *pins, str(wheel))
    run(str(made / programs / "treadle"), "init", "shop", cwd=tmp_path)
    readme = (tmp_path / "shop" / "README.md").read_text()
    first, second = re.findall(r"^    pip install (.*)$", readme, re.MULTILINE)
    install = (UV, "pip", "install", "--quiet", "--python", str(new / programs / "python"), *pins)
    assert first.split()[0] == "PATH"  # the reader's own: the one of this machine is no help to others
    run(*install, str(wheel), cwd=tmp_path / "shop")
    run(*install, "--dry-run", "--no-build-isolation", *shlex.split(second), cwd=tmp_path / "shop")
