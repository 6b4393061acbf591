#!/usr/bin/env python3
"""Everything one does in this checkout, each command with its own set-up: `python3 dev.py help`.

Needs Python 3.11 and its standard library. The first command makes `.venv` from the pins in
requirements/dev.txt; later ones see from a stamp that nothing changed and start at once, offline.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV, BOOT = ROOT / ".venv", ROOT / ".boot"
PINS = ROOT / "requirements" / "dev.txt"
WINDOWS = sys.platform == "win32"
BIN, EXE = (VENV / "Scripts", ".exe") if WINDOWS else (VENV / "bin", "")
PYTHON = str(BIN / f"python{EXE}")
BASE = getattr(sys, "_base_executable", None) or sys.executable  # the interpreter itself, also when .venv runs us
COMPILE = "pip compile --quiet --universal --python-version 3.11 --generate-hashes --only-binary :all: "
COMPILE += "--no-emit-index-url --no-header --output-file requirements/dev.txt requirements/dev.in pyproject.toml"


def tool(module: str, *args: str) -> list[str]:
    return [PYTHON, "-m", module, *args]


def call(command: list[str], show: bool = True, keep: bool = False) -> tuple[int, str]:
    """Run to the end -> exit code and, with `keep`, what it said.

    Ctrl-C reaches the child by itself (same terminal), so we wait for it to tidy up; the third one kills it.
    """
    env = {**os.environ, "VIRTUAL_ENV": str(VENV), "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"}
    pipe = subprocess.PIPE if keep else None
    child = subprocess.Popen(command, cwd=ROOT, env=env, stdout=pipe, stderr=subprocess.STDOUT if keep else None)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    said, interrupts = bytearray(), 0
    while True:
        try:
            while child.stdout and (chunk := os.read(child.stdout.fileno(), 65536)):
                said += chunk
                if show:
                    os.write(sys.stdout.fileno(), chunk)
            code = child.wait()
            break
        except KeyboardInterrupt:
            interrupts += 1
            if interrupts == 3:
                child.kill()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if interrupts and code:
        raise KeyboardInterrupt
    return (code if code >= 0 else 128 - code), said.decode(errors="replace")


def step(name: str, command: list[str]) -> tuple[str, bool, str]:
    """One line of what happens and how long it took; if it failed, all it said and the command too."""
    print(f"{name:<18}", end=" ", flush=True)
    begun = time.perf_counter()
    code, said = call(command, show=False, keep=True)
    took = f"{time.perf_counter() - begun:.1f} s"
    if code == 0:
        print(took, flush=True)
        return name, True, took
    print(f"{took}  FAILED\n{said.rstrip()}\n-> exit code {code} from: {' '.join(command)}\n", flush=True)
    return name, False, f"{took}, exit code {code}"


def summary(rows: list[tuple[str, bool, str]]) -> int:
    print("\n" + "\n".join(f"{'ok    ' if good else 'FAILED'}  {name:<18} {said}" for name, good, said in rows))
    failed = [name for name, good, _ in rows if not good]
    print(f"failed: {', '.join(failed)}" if failed else "all passed", flush=True)
    return 1 if failed else 0


# ---------------------------------------------------------------------------------------------- set-up


@contextmanager
def alone() -> Iterator[None]:
    """Two commands started together must not both make .venv."""
    BOOT.mkdir(exist_ok=True)
    with (BOOT / "lock").open("w") as lock:
        if not WINDOWS:
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def make_venv() -> str:
    """Make an empty .venv -> the uv to fill it with, itself installed by its pinned hashes."""
    (BOOT / "uv.txt").write_text(re.findall(r"^uv==.*?[^\\]\n", PINS.read_text(), re.S | re.M)[0])
    wanted = ["--quiet", "--disable-pip-version-check", "--require-hashes", "-r", str(BOOT / "uv.txt")]
    if importlib.util.find_spec("ensurepip") and step("set-up: .venv", [BASE, "-m", "venv", "--clear", str(VENV)])[1]:
        if step("set-up: uv", tool("pip", "install", *wanted))[1]:
            return str(BIN / f"uv{EXE}")
        sys.exit("set-up failed: is the package index reachable?")
    site = BOOT / "site"  # Debian without python3-venv: pip may still install beside itself
    uv = shutil.which("uv") or str(site / "bin" / f"uv{EXE}")
    by_pip = [BASE, "-m", "pip", "install", "--target", str(site), *wanted]
    if not Path(uv).exists() and not step("set-up: uv", by_pip)[1]:
        sys.exit("set-up failed: this Python has neither venv nor pip; on Debian: apt-get install python3-venv")
    if not step("set-up: .venv", [uv, "venv", "--quiet", "--clear", "--python", BASE, str(VENV)])[1]:
        sys.exit("set-up failed: no virtual environment")
    return uv


def set_up() -> None:
    inputs = PINS.read_bytes() + (ROOT / "pyproject.toml").read_bytes()
    wanted, stamp = [sys.version, str(ROOT), hashlib.sha256(inputs).hexdigest()], VENV / "stamp"
    with alone():
        found = stamp.read_text().split("\0") if stamp.exists() and Path(PYTHON).exists() else []
        if found == wanted:
            return
        begun = time.perf_counter()
        # a .venv of another Python, or one that was never finished, is made anew
        uv = str(BIN / f"uv{EXE}") if found[:2] == wanted[:2] else make_venv()
        stamp.unlink(missing_ok=True)
        into = ["--quiet", "--python", PYTHON]
        own = ["--no-deps", "--no-build-isolation", "--editable", "."]
        if not (
            step("set-up: packages", [uv, "pip", "sync", *into, "--require-hashes", str(PINS)])[1]
            and step("set-up: treadle", [uv, "pip", "install", *into, *own])[1]
        ):
            sys.exit("set-up failed: nothing else was run")
        stamp.write_text("\0".join(wanted))
        print(f"set-up done in {time.perf_counter() - begun:.1f} s, Python {sys.version.split()[0]}\n", flush=True)


# -------------------------------------------------------------------------------------------- commands


def checks() -> list[tuple[str, bool, str]]:
    steps = {
        "style": tool("ruff", "check", "--output-format=concise", "."),
        "format": tool("ruff", "format", "--check", "--output-format=concise", "."),
        "types": tool("mypy"),
        "layers": [str(BIN / f"lint-imports{EXE}")],
    }
    if any((ROOT / "tests/types").glob("**/*.py")):
        steps["users' types: mypy"] = tool("mypy", "tests/types")
        steps["... basedpyright"] = tool("basedpyright")
    return [step(name, command) for name, command in steps.items()]


def demo(args: list[str]) -> int:
    """show Treadle at work (`treadle demo`)"""
    return call([str(BIN / f"treadle{EXE}"), "demo", *args])[0]


def test(args: list[str]) -> int:
    """style, types, layers, then all tests; with arguments only pytest, with them"""
    if args:
        return call(tool("pytest", *args))[0]
    rows = checks()
    workers = os.environ.get("TEST_WORKERS", "2")
    colour = "--color=yes" if sys.stdout.isatty() else "--color=no"
    command = tool("pytest", "-n", workers, colour)
    print("\npytest", flush=True)
    code, said = call(command, keep=True)
    closing = re.sub(r"\x1b\[[\d;]*m", "", said.rstrip().rsplit("\n", 1)[-1]).strip(" =") or "said nothing"
    if code:
        print(f"-> exit code {code} from: {' '.join(command)}")
    return summary([*rows, ("tests", code == 0, closing)])


def check(args: list[str]) -> int:
    """style, types and layers only"""
    return summary(checks())


def lint(args: list[str]) -> int:
    """repair style and format in place"""
    codes = [call(tool("ruff", *words, "--quiet", "."))[0] for words in (["check", "--fix"], ["format"])]
    return max(codes)


def docs(args: list[str]) -> int:
    """build the documentation into site/, its reference from the docstrings"""
    return summary([step("reference", tool("tools.apidoc")), step("site", tool("zensical", "build", "--clean"))])


def bench(args: list[str]) -> int:
    """run the benchmarks"""
    return call(tool("benchmarks", *args))[0]


def soak(args: list[str]) -> int:
    """run the long tests under load and faults"""
    return call(tool("pytest", "-m", "soak", "-n0", "-s", "--timeout=0", *args))[0]


def licenses(args: list[str]) -> int:
    """list the licences of all that is installed"""
    return call(tool("piplicenses", "--order=license", *args))[0]


def changelog(args: list[str]) -> int:
    """show what changes/ would add to CHANGELOG.md; `changelog VERSION` writes it"""
    how = ["--yes", "--version", *args] if args else ["--draft", "--version", "next"]
    return call(tool("towncrier", "build", *how))[0]


def pins(args: list[str]) -> int:
    """compile requirements/dev.txt anew; `--upgrade` takes newer versions too"""
    return call([str(BIN / f"uv{EXE}"), *COMPILE.split(), *args])[0]


COMMANDS = [demo, test, check, lint, docs, bench, soak, licenses, changelog, pins]


def main(words: list[str]) -> int:
    name, args = (words[0], words[1:]) if words else ("help", [])
    command = {known.__name__: known for known in COMMANDS}.get(name)
    if command is None:
        print("python3 dev.py COMMAND [ARGUMENTS]\n")
        print("\n".join(f"  {known.__name__:<10} {known.__doc__}" for known in COMMANDS))
        print("\nThe first one sets everything up in .venv; nothing outside this folder is changed.")
        return 0 if name in {"help", "-h", "--help"} else 2
    if sys.version_info < (3, 11):  # noqa: UP036 - whoever starts this may have an older one
        sys.exit(f"Treadle needs Python 3.11 or newer; this is {sys.version.split()[0]}")
    set_up()
    return command([word for at, word in enumerate(args) if (at, word) != (0, "--")])


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit("\ninterrupted")
