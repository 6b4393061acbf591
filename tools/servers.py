"""Runs the tests of a storage against each of the given servers, one after the other: other versions, other builds.

It checks that the oldest supported version still works.

    python3 dev.py test --servers valkey=/usr/bin/redis-server pg=/usr/lib/postgresql/15/bin [-- arguments of pytest]
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

# kind -> the variable that names the server for the tests; a pattern for the names and folders of its tests
KINDS: Final = {
    "valkey": ("TEST_VALKEY_BIN", "redis or valkey or test_servers"),
    "pg": ("TEST_PG_BIN", "postgres or pg"),
}
FOLDERS: Final = ("tests/storage", "tests/faults", "tests/servers")
USAGE: Final = "expected valkey=PROGRAM or pg=FOLDER (the one that holds `postgres`)"


def version(kind: str, place: str) -> str:
    """The version that the server prints. Raises ValueError if there is no such program."""
    program = str(Path(place, "postgres")) if kind == "pg" else place
    found = shutil.which(program)
    if found is None:
        raise ValueError(f"{kind}={place}: there is no program {program}; {USAGE}")
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)
    return (said.stdout or said.stderr).strip()


def run(kind: str, place: str, more: list[str]) -> int:
    variable, tests = KINDS[kind]
    workers = os.environ.get("TEST_WORKERS", "3")
    command = [sys.executable, "-m", "pytest", "-q", "-n", workers, "-k", tests, *FOLDERS, *more]
    return subprocess.run(command, env={**os.environ, variable: place}, check=False).returncode


def main(words: list[str]) -> int:
    at = words.index("--") if "--" in words else len(words)
    named, more = [word.partition("=") for word in words[:at]], words[at + 1 :]
    try:
        if not named or any(kind not in KINDS or not place for kind, _, place in named):
            raise ValueError(f"{USAGE}, found {' '.join(words) or 'nothing'}")
        servers = [(kind, place, version(kind, place)) for kind, _, place in named]
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    rows = []
    for kind, place, found in servers:
        print(f"\n--- {found} ({place})", flush=True)
        rows.append((run(kind, place, more), found, place))
    print("\n" + "\n".join(f"{'FAILED' if code else 'ok    '}  {found} ({place})" for code, found, place in rows))
    return max(code for code, _, _ in rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
