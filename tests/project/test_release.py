"""`dev.py release`, tried in a clone: what it makes, what it refuses, and that a refusal leaves nothing behind."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tools import release

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
CHANGED = "+trial.changed.md"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository with the files of the working tree that a package needs, and one change."""
    return made(tmp_path / "clone", "src", "tools", "packages")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """The same without code: for what is refused before anything is built."""
    return made(tmp_path / "clone")


def made(found: Path, *folders: str) -> Path:
    needed = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", ".gitignore", "changes/README.md", *folders)
    for name in git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard", *needed).splitlines():
        if (ROOT / name).is_file():
            (found / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, found / name)
    git(found, "init", "--quiet", "--initial-branch", "main")
    git(found, "config", "user.name", "Ada")
    git(found, "config", "user.email", "ada@example.org")
    return commit(found, CHANGED, "A cron line fires once.")


def git(where: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=where, check=True, capture_output=True, text=True).stdout.strip()


def commit(clone: Path, change: str, text: str) -> Path:
    (clone / "changes" / change).write_text(text + "\n")
    git(clone, "add", "--all")
    git(clone, "commit", "--quiet", "--message", "Work")
    return clone


def test_a_release_is_a_commit_a_tag_and_files_with_checksums(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    release.release(clone, "0.7.0", ["true"], dry=False)
    assert git(clone, "status", "--porcelain") == ""
    assert git(clone, "log", "-1", "--format=%s %an") == "Release 0.7.0 Ada"
    assert git(clone, "describe") == "v0.7.0"
    assert git(clone, "cat-file", "-t", "v0.7.0") == "tag"
    assert "A cron line fires once." in (clone / "CHANGELOG.md").read_text().partition("## 0.7.0")[2]
    assert not list((clone / "changes").glob("+*"))
    folder = clone / "dist/0.7.0"
    sums = [line.split("  ") for line in (folder / "SHA256SUMS").read_text().splitlines()]
    names = [
        f"{name}-0.7.0{end}" for name in ("treadle", "treadle_testkit") for end in ("-py3-none-any.whl", ".tar.gz")
    ]
    assert [name for _, name in sums] == names
    for digest, name in sums:
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
    with zipfile.ZipFile(folder / "treadle-0.7.0-py3-none-any.whl") as wheel:
        assert '__version__ = "0.7.0"' in wheel.read("treadle/__init__.py").decode()
    assert "git push origin main v0.7.0" in capsys.readouterr().out

    commit(clone, "+trial.faster.md", "A claim takes 2 ms, not 4.")
    release.release(clone, None, ["true"], dry=True)
    assert [path.name for path in (clone / "build").iterdir()] == ["0.7.1"]
    assert git(clone, "tag") == "v0.7.0"
    assert git(clone, "status", "--porcelain") == ""
    commit(clone, CHANGED, "A limit has a name.")
    assert release._version(clone, None) == "0.8.0"


def dirty(clone: Path) -> None:
    (clone / "README.md").write_text("")


def tagged(clone: Path) -> None:
    git(clone, "tag", "v0.7.0")


def unchanged(clone: Path) -> None:
    git(clone, "rm", "--quiet", f"changes/{CHANGED}")
    git(clone, "commit", "--quiet", "--message", "Nothing")


def test_an_entry_written_by_hand_is_dated(small: Path) -> None:
    unchanged(small)
    path = small / "CHANGELOG.md"
    path.write_text("# Changelog\n\n## 0.7.0 (unreleased)\n\nThe first.\n")
    assert release._version(small, "0.7.0") == "0.7.0"
    release._write_entry(small, "0.7.0")
    assert re.fullmatch(r"# Changelog\n\n## 0\.7\.0 \(\d{4}-\d\d-\d\d\)\n\nThe first\.\n", path.read_text())


def by_hand(clone: Path) -> None:
    (clone / "CHANGELOG.md").write_text("## 0.7.0 (unreleased)\n")
    git(clone, "commit", "--quiet", "--all", "--message", "An entry")


@pytest.mark.parametrize(
    ("prepare", "version", "check", "said"),
    [
        (dirty, "0.7.0", "true", "uncommitted changes"),
        (tagged, "0.7.0", "true", "the tag v0.7.0 exists"),
        (unchanged, "0.7.0", "true", "nothing to release"),
        (by_hand, "0.7.0", "true", "move the texts of changes/ into it"),
        (git, "0.7.0", "false", "the check failed: false"),
        (git, "0.0.1", "true", "0.0.1 is lower than"),
        (git, "next", "true", "expected a version such as 0.2.0"),
    ],
)
def test_a_refused_release_leaves_nothing_behind(
    small: Path, prepare: Callable[..., object], version: str, check: str, said: str
) -> None:
    if prepare is not git:
        prepare(small)
    before = git(small, "rev-parse", "HEAD"), git(small, "status", "--porcelain"), git(small, "tag")
    with pytest.raises(release.Refused, match=said):
        release.release(small, version, [check], dry=False)
    assert (git(small, "rev-parse", "HEAD"), git(small, "status", "--porcelain"), git(small, "tag")) == before
    assert not (small / "dist").exists()
