"""The dashboard as users get it: in the wheel and in the source archive, without Node.js and without the checkout."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import urllib.request
import zipfile
from pathlib import Path

import pytest

from tests.cli.tools import Command
from treadle.server.dashboard.routes import files

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
FOLDER = "treadle/server/dashboard/static/"
LARGEST = 400_000  # bytes of all built files, uncompressed
ELSEWHERE = ("w3.org",)  # names of formats, which nothing loads


def run(*command: str, **options: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=options.get("cwd", ROOT))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source archive of this checkout."""
    folder = tmp_path_factory.mktemp("dist")
    uv = shutil.which("uv", path=str(Path(sys.executable).parent))
    assert uv is not None
    for kind in ("--wheel", "--sdist"):
        run(uv, "build", kind, "--quiet", "--offline", "--no-build-isolation", "--out-dir", str(folder), str(ROOT))
    return folder


def test_the_wheel_and_the_source_archive_have_the_built_files(archives: Path) -> None:
    wanted = {"index.html", "LICENSES", "build.json", *(f"assets/{name}" for name in files().assets)}
    wanted |= {f"assets/{name}.gz" for name in files().assets if name.endswith((".js", ".css"))}
    (wheel,), (source,) = archives.glob("*.whl"), archives.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as packed:
        assert {name.removeprefix(FOLDER) for name in packed.namelist() if name.startswith(FOLDER)} >= wanted
        sizes = [each.file_size for each in packed.infolist() if each.filename.startswith(FOLDER)]
        assert sum(sizes) < LARGEST
    with tarfile.open(source) as packed_source:
        names = {name.partition(f"/src/{FOLDER}")[2] for name in packed_source.getnames()}
        assert names >= wanted


def test_the_built_files_name_no_other_host(archives: Path) -> None:
    (wheel,) = archives.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        for name in packed.namelist():
            if name.startswith(FOLDER) and name.endswith((".html", ".js", ".css")):
                for host in re.findall(r"(?:https?:|[\"'`])//([a-z0-9-]+\.[a-z0-9.-]+)", packed.read(name).decode()):
                    assert host.endswith(ELSEWHERE), f"{name} names {host}"


def test_an_installed_treadle_serves_the_dashboard(archives: Path, tmp_path: Path) -> None:
    """In an environment that has the wheel and the packages of the extra, and no checkout."""
    (wheel,) = archives.glob("*.whl")
    uv = shutil.which("uv", path=str(Path(sys.executable).parent))
    assert uv is not None
    place = tmp_path / "venv"
    run(uv, "venv", "--quiet", "--python", sys.executable, str(place))
    python = str(place / "bin/python")
    run(uv, "pip", "install", "--quiet", "--offline", "--no-deps", "--python", python, str(wheel))
    (site,) = place.glob("lib/python*/site-packages")
    (site / "packages_of_the_extra.pth").write_text(sysconfig.get_path("purelib"))  # its own .pth files are not read
    run(python, "-c", f"import treadle; assert treadle.__file__.startswith({str(site)!r})", cwd=tmp_path)
    run(python, "-m", "treadle", "storage", "migrate", "--url", "sqlite:///jobs.db", cwd=tmp_path)
    with Command(
        "dashboard", "--no-open", "--port", "0", "--url", "sqlite:///jobs.db", cwd=tmp_path, program=python
    ) as it:
        url = it.wait_for("the dashboard is at").rpartition(" ")[2]
        with urllib.request.urlopen(url, timeout=20) as answer:
            page = answer.read().decode()
        script = page.partition('src="assets/')[2].partition('"')[0]
        with urllib.request.urlopen(f"{url}assets/{script}", timeout=20) as answer:
            assert len(answer.read()) > 1_000
