"""Makes a release, up to the upload: version, changelog, commit, tag, wheels, source distributions and checksums.

    python3 dev.py release [VERSION] [--dry-run] [--check COMMAND]

VERSION defaults to that of pyproject.toml while it has no tag; afterwards to its next patch version if changes/ only
mends and speeds up, otherwise to its next minor version. The work is done in a clone of the last commit: if a step
fails, this checkout is as it was. On success the commit and the tag come here, and the files are in dist/VERSION/.
With --dry-run neither does, and the files are in build/VERSION/.

The changelog's entry is made from the files in changes/, unless CHANGELOG.md has one for VERSION that was written by
hand, with "(unreleased)" in place of the date: that of 0.1.0.

Refused: uncommitted changes, an existing tag or a lower version, an entry that is missing or written twice, a failing
check. The check is `.ci/run`, which runs all tests on a fresh clone.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FORM = re.compile(r"(\d+)\.(\d+)\.(\d+)((a|b|rc)\d+)?")
SMALL = ("fixed", "faster")
TESTKIT = "packages/testkit"  # a distribution of its own, with the version of Treadle
VERSIONED = {
    "pyproject.toml": r'(?m)^version = "{}"$',
    f"{TESTKIT}/pyproject.toml": r'(?m)^version = "{}"$',
    "src/treadle/__init__.py": r'(?m)^__version__ = "{}"$',
}


class Refused(Exception):
    """The release cannot be made. The message says what to change."""


def main(words: list[str]) -> int:
    """Make a release -> the exit code."""
    parser = argparse.ArgumentParser(prog="dev.py release")
    parser.add_argument("version", nargs="?")
    parser.add_argument("--dry-run", action="store_true", help="keep the commit and the tag out of this checkout")
    parser.add_argument("--check", default=".ci/run", help="command that must succeed first [default: .ci/run]")
    given = parser.parse_args(words)
    try:
        release(ROOT, given.version, shlex.split(given.check), given.dry_run)
    except Refused as refused:
        print(f"release: {refused}", file=sys.stderr)
        return 1
    return 0


def release(root: Path, wanted: str | None, check: list[str], dry: bool) -> None:
    """Make the release of the last commit in `root`. Raises Refused."""
    if git(root, "status", "--porcelain"):
        raise Refused("there are uncommitted changes: commit them first, or move them away")
    version = _version(root, wanted)
    print(f"release: {version}; running {shlex.join(check)}", flush=True)
    if subprocess.run(check, cwd=root, check=False).returncode:
        raise Refused(f"the check failed: {shlex.join(check)}")
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "treadle"
        git(root, "clone", "--quiet", "--no-hardlinks", str(root), str(clone))
        _write_version(clone, version)
        _write_entry(clone, version)
        for name in ("user.name", "user.email"):
            git(clone, "config", name, git(root, "config", name))
        git(clone, "commit", "--quiet", "--all", "--message", f"Release {version}")
        git(clone, "tag", "--annotate", f"v{version}", "--message", f"Treadle {version}")
        made = _build(clone, Path(folder) / "dist", version)
        into = root / ("build" if dry else "dist") / version
        shutil.rmtree(into, ignore_errors=True)
        shutil.copytree(made, into)
        if not dry:
            git(root, "fetch", "--quiet", "--no-tags", str(clone), f"refs/tags/v{version}:refs/tags/v{version}")
            git(root, "merge", "--quiet", "--ff-only", f"v{version}")
    _tell(root, into, version, dry)


def _version(root: Path, wanted: str | None) -> str:
    """The version to release. Raises Refused."""
    now: str = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    tags = set(git(root, "tag", "--list", "v*").split())
    kinds = {path.name.split(".")[-2] for path in (root / "changes").glob("+*.md")}
    version = wanted or (_next(now, kinds) if f"v{now}" in tags else now)
    if not FORM.fullmatch(version):
        raise Refused(f"expected a version such as 0.2.0 or 1.0.0rc1, found {version!r}")
    if f"v{version}" in tags:
        raise Refused(f"the tag v{version} exists: give a higher version")
    if _order(version) < _order(now):
        raise Refused(f"{version} is lower than {now}, the version of pyproject.toml")
    by_hand = _by_hand(version) in (root / "CHANGELOG.md").read_text()
    if not kinds and not by_hand:
        raise Refused(f"changes/ is empty, CHANGELOG.md has no {_by_hand(version)!r}: there is nothing to release")
    if kinds and by_hand:
        raise Refused(f"CHANGELOG.md has {_by_hand(version)!r}: move the texts of changes/ into it")
    return version


def _by_hand(version: str) -> str:
    """The heading of an entry that was written by hand."""
    return f"## {version} (unreleased)"


def _write_entry(clone: Path, version: str) -> None:
    """Date the entry that was written by hand, or make one from changes/."""
    path = clone / "CHANGELOG.md"
    before = path.read_text()
    if _by_hand(version) in before:
        path.write_text(
            before.replace(_by_hand(version), f"## {version} ({datetime.datetime.now(datetime.UTC).date()})")
        )
    else:
        tool(clone, sys.executable, "-m", "towncrier", "build", "--yes", "--version", version)


def _next(now: str, kinds: set[str]) -> str:
    major, minor, patch = _order(now)[:3]
    return f"{major}.{minor}.{patch + 1}" if kinds <= set(SMALL) else f"{major}.{minor + 1}.0"


def _order(version: str) -> tuple[int, int, int, str]:
    """Sorts versions: 1.0.0a1 before 1.0.0rc1 before 1.0.0."""
    found = FORM.fullmatch(version)
    assert found is not None, version
    return int(found[1]), int(found[2]), int(found[3]), found[4] or "~"


def _write_version(clone: Path, version: str) -> None:
    now = tomllib.loads((clone / "pyproject.toml").read_text())["project"]["version"]
    for name, line in VERSIONED.items():
        path = clone / name
        pattern = line.format(re.escape(now))
        text, count = re.subn(pattern, lambda found: found[0].replace(now, version), path.read_text())
        if count != 1:
            raise Refused(f"{name}: expected one line {pattern!r}, found {count}")
        path.write_text(text)


def _build(clone: Path, into: Path, version: str) -> Path:
    """Build the files of both distributions and their checksums -> the folder."""
    uv = str(Path(sys.executable).with_name("uv"))
    options = ("--quiet", "--offline", "--no-build-isolation", "--python", sys.executable, "--out-dir", str(into))
    for project in (clone, clone / TESTKIT):
        tool(clone, uv, "build", *options, str(project))
    (into / ".gitignore").unlink(missing_ok=True)
    files = sorted(path for path in into.iterdir() if path.is_file())
    stems = (f"treadle-{version}", f"treadle_testkit-{version}")
    names = [f"{stem}{end}" for stem in stems for end in ("-py3-none-any.whl", ".tar.gz")]
    if [path.name for path in files] != names:
        raise Refused(f"expected {names}, found {[path.name for path in files]}")
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (into / "SHA256SUMS").write_text("".join(sums))
    return into


def _tell(root: Path, into: Path, version: str, dry: bool) -> None:
    print((into / "SHA256SUMS").read_text(), end="")
    if dry:
        print(f"release: dry run; the files are in {into.relative_to(root)}, nothing else is left")
        return
    branch = git(root, "rev-parse", "--abbrev-ref", "HEAD")
    print(f"release: committed and tagged v{version}; the files are in {into.relative_to(root)}. To publish it:")
    print(f"  git push origin {branch} v{version}")
    print(f"  uv publish {into.relative_to(root)}/treadle*-{version}*")


def git(root: Path, *words: str) -> str:
    """What git prints. Raises Refused with its error."""
    return tool(root, "git", *words).strip()


def tool(root: Path, *command: str) -> str:
    """What a command prints. Raises Refused with its error."""
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(f"{shlex.join(command)} failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
