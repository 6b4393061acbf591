"""The Python interpreters of this machine that Treadle can be tried with: those on PATH and those beside this one.

python -m tools.interpreters
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

LEAST, MOST = (3, 11), (3, 20)


def found() -> dict[str, Path]:
    """The newest interpreter of each minor version, such as {"3.12": Path(".../python3.12")}, this one's included."""
    newest: dict[str, tuple[tuple[int, ...], Path]] = {}
    for path in dict.fromkeys(_candidates()):
        version = _version(path)
        if version is None or version < LEAST:
            continue
        minor = f"{version[0]}.{version[1]}"
        newest[minor] = max(newest.get(minor, ((0,), path)), (version, path), key=lambda each: each[0])
    return {minor: path for minor, (_, path) in sorted(newest.items(), key=lambda each: each[1][0])}


def _candidates() -> Iterator[Path]:
    base = Path(getattr(sys, "_base_executable", None) or sys.executable)
    yield base
    for minor in range(LEAST[1], MOST[1]):
        if named := shutil.which(f"python3.{minor}"):
            yield Path(named)
    home = Path(sys.base_prefix)  # several versions installed side by side: folders named by version
    if home.name.startswith("3."):
        yield from sorted(home.parent.glob("3.*/bin/python3"))


def _version(path: Path) -> tuple[int, ...] | None:
    """None for a program that does not run, as a launcher for a version that is not installed."""
    show = "import sys; print(*sys.version_info[:3])"
    try:
        done = subprocess.run([path, "-I", "-c", show], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return tuple(map(int, done.stdout.split()))


if __name__ == "__main__":
    for minor, path in found().items():
        print(f"{minor:<6} {path}")
