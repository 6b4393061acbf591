"""Runs the tests of the Django part on Django 6, which needs Python 3.12, in an environment of its own.

On Python 3.12 and later the ordinary tests do that already. On 3.11 this looks for a later interpreter on the machine
(TEST_DJANGO_PYTHON, or see tools/interpreters.py), makes `.venv-django` from the same pins, and runs the tests there.

    python -m tools.django_six [arguments of pytest]
"""

from __future__ import annotations

import hashlib
import os
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Final

from tools import interpreters

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDER: Final = ROOT / ".venv-django"
PINS: Final = ROOT / "requirements/dev.txt"
TESTS: Final = "tests/integrations/django"
LEAST: Final = (3, 12)
NONE: Final = "not run on Django 6: no Python of 3.12 or later on this machine; TEST_DJANGO_PYTHON may name one"


def interpreter() -> str | None:
    """The one that TEST_DJANGO_PYTHON names, or the latest on the machine; None: there is none from 3.12 on."""
    if named := os.environ.get("TEST_DJANGO_PYTHON"):
        return named
    late = [str(path) for minor, path in interpreters.found().items() if tuple(map(int, minor.split("."))) >= LEAST]
    return late[-1] if late else None


def make(program: str) -> str:
    """The environment's Python; made anew if the pins or the interpreter have changed."""
    python, stamp = str(FOLDER / "bin/python"), FOLDER / "stamp"
    wanted = "\0".join([program, str(ROOT), hashlib.sha256(PINS.read_bytes()).hexdigest()])
    if stamp.exists() and stamp.read_text() == wanted and Path(python).exists():
        return python
    uv, into = str(Path(sys.executable).with_name("uv")), ["--quiet", "--python", python]
    editable = ["--editable", str(ROOT), "--editable", str(ROOT / "packages/testkit")]
    for command in (
        [uv, "venv", "--quiet", "--clear", "--python", program, str(FOLDER)],
        [uv, "pip", "sync", *into, "--require-hashes", str(PINS)],
        [uv, "pip", "install", *into, "--no-deps", "--no-build-isolation", *editable],
    ):
        subprocess.run(command, check=True, cwd=ROOT)
    stamp.write_text(wanted)
    return python


def main(words: list[str]) -> int:
    if sys.version_info >= LEAST:
        print("the ordinary tests run on Django 6")
        return 0
    program = interpreter()
    if program is None:
        print(NONE)
        return 0
    if any(Path(ssl.get_default_verify_paths().capath or "none").glob("*")):
        os.environ.setdefault("UV_SYSTEM_CERTS", "1")  # trust whom this machine trusts, as dev.py does
    try:
        python = make(program)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"no environment for Django 6: {error}")
        return 1
    command = [python, "-m", "pytest", "-q", *(words or ["-n2"]), TESTS]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
