#!/usr/bin/env python3
"""Everything one does in this checkout, each command with its own set-up: `python3 dev.py help`.

Needs Python 3.11 and its standard library. The first command makes `.venv` from the pins in
requirements/dev.txt; later ones see from a stamp that nothing changed and start at once, offline.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV, BOOT, PINS = ROOT / ".venv", ROOT / ".boot", ROOT / "requirements/dev.txt"
TESTKIT = "packages/testkit"  # the distribution with the tests for storages, which our own tests use
BIN, EXE = (VENV / "Scripts", ".exe") if sys.platform == "win32" else (VENV / "bin", "")
PYTHON, UV = str(BIN / f"python{EXE}"), str(BIN / f"uv{EXE}")
BASE = getattr(sys, "_base_executable", None) or sys.executable  # the interpreter itself, also when .venv runs us
PIN = "pip compile --quiet --universal --python-version 3.11 --generate-hashes --only-binary :all: --no-emit-index-url"
PIN += " --no-header --output-file "
PIN_DEV = "requirements/dev.txt requirements/dev.in pyproject.toml"
PIN_IMAGE = "requirements/image.txt requirements/image.in pyproject.toml --constraints requirements/dev.txt"
PIN_IMAGE += " --extra server --extra http --extra redis --extra postgres"
PIN_NODE = "requirements/browser/node.txt requirements/browser/node.in"
UNAVAILABLE = 69  # exit code (EX_UNAVAILABLE) without a set-up: no test has run, and none has failed
FEW = 5  # failed tests that `--retry` runs once more
NOT_SLOW = ["-m", "not slow and not soak"]
WORKERS = "4"  # test processes for two cores: half of their time they wait for servers and clocks
KEEP = {"PATH", "HOME", "TERM", "LANG", "TMPDIR", "TREADLE_EXAMPLES"}  # what a step may see, besides KEEP_PREFIXES
KEEP |= {"SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"}
KEEP |= {f"{scheme}_PROXY" for scheme in ("HTTP", "HTTPS", "ALL", "NO")}
KEEP |= {"SYSTEMROOT", "COMSPEC", "PATHEXT", "USERPROFILE", "APPDATA", "LOCALAPPDATA", "TEMP", "TMP"}  # Windows
KEEP |= {"NODE_EXTRA_CA_CERTS"}
SHM, ROOM = "/dev/shm", 6 << 30  # a whole run keeps up to 4 GB of files
KEEP_PREFIXES = ("TEST_", "PIP_", "UV_", "NPM_CONFIG_")
DRAFT = ["--draft", "--version", "next"]
Row = tuple[str, bool, str]  # name of the step, whether it went well, what the summary says of it


def tool(module: str, *args: str) -> list[str]:
    return [PYTHON, "-m", module, *args]


def scrubbed(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a step gets from the caller's environment. Tests that need more pass on one machine only."""
    return {
        name: text
        for name, text in environment.items()
        if name.upper() in KEEP or name.upper().startswith(KEEP_PREFIXES)
    }


def call(command: list[str], show: bool = True, keep: bool = False, inherit: bool = False) -> tuple[int, str]:
    """Run it -> exit code and, with `keep`, what it said. Ctrl-C reaches it by itself; the third one kills it.

    The command gets a scrubbed environment, or with `inherit` the caller's whole one.
    """
    env = dict(os.environ) if inherit else scrubbed(os.environ)
    env |= {"VIRTUAL_ENV": str(VENV), "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"}
    out, err = (subprocess.PIPE, subprocess.STDOUT) if keep else (None, None)
    child = subprocess.Popen(command, cwd=ROOT, env=env, stdout=out, stderr=err)

    def stop(*_: object) -> None:
        child.terminate()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    said, interrupts = bytearray(), 0
    while child.returncode is None:
        try:
            while child.stdout and (chunk := os.read(child.stdout.fileno(), 65536)):
                said += chunk
                if show:
                    os.write(1, chunk)
            child.wait()
        except KeyboardInterrupt:
            interrupts += 1
            if interrupts == 3:
                child.kill()
    signal.signal(signal.SIGTERM, before)
    if child.stdout:
        child.stdout.close()
    if interrupts and child.returncode:
        raise KeyboardInterrupt
    return (child.returncode if child.returncode >= 0 else 128 - child.returncode), said.decode(errors="replace")


def step(name: str, command: list[str]) -> Row:
    """One line of what happens and how long it took; if it failed, all it said and the command too."""
    print(f"{name:<18}", end=" ", flush=True)
    begun = time.perf_counter()
    code, said = call(command, show=False, keep=True)
    took = f"{time.perf_counter() - begun:.1f} s"
    failed = f"  FAILED\n{said.rstrip()}\n-> exit code {code} from: {' '.join(command)}\n" if code else ""
    print(took + failed, flush=True)
    return name, code == 0, f"{took}, exit code {code}" if code else took


def must(why: str, name: str, command: list[str]) -> None:
    if not step(name, command)[1]:
        print(f"set-up failed: {why}", file=sys.stderr)
        sys.exit(UNAVAILABLE)


def summary(rows: list[Row], more: str = "") -> int:
    """The table of all steps; the last line says which ones failed, and `more`."""
    print("\n" + "\n".join(f"{'ok    ' if good else 'FAILED'}  {name:<18} {said}" for name, good, said in rows))
    failed = [name for name, good, _ in rows if not good]
    print((f"failed: {', '.join(failed)}" if failed else "all passed") + more, flush=True)
    return 1 if failed else 0


def make_venv() -> str:
    """Make an empty .venv -> the uv to fill it with, itself installed by its pinned hashes."""
    (BOOT / "uv.txt").write_text(re.findall(r"^uv==.*?[^\\]\n", PINS.read_text(), re.DOTALL | re.MULTILINE)[0])
    pinned = ["--quiet", "--disable-pip-version-check", "--require-hashes", "-r", str(BOOT / "uv.txt")]
    if importlib.util.find_spec("ensurepip"):
        must("no virtual environment", "set-up: .venv", [BASE, "-m", "venv", "--clear", str(VENV)])
        must("is the package index reachable?", "set-up: uv", tool("pip", "install", *pinned))
        return UV
    site = BOOT / "site"  # Debian without python3-venv: pip may still install into a folder
    uv = shutil.which("uv") or str(site / "bin" / f"uv{EXE}")
    if not Path(uv).exists():
        pip = [BASE, "-m", "pip", "install", "--target", str(site), *pinned]
        must("no venv and no pip; on Debian: apt-get install python3-venv", "set-up: uv", pip)
    must("no virtual environment", "set-up: .venv", [uv, "venv", "--quiet", "--clear", "--python", BASE, str(VENV)])
    return uv


def set_up() -> None:
    projects = (ROOT / "pyproject.toml", ROOT / TESTKIT / "pyproject.toml")
    inputs = PINS.read_bytes() + b"".join(each.read_bytes() for each in projects)
    wanted, stamp = [sys.version, str(ROOT), hashlib.sha256(inputs).hexdigest()], VENV / "stamp"
    BOOT.mkdir(exist_ok=True)
    with (BOOT / "lock").open("w") as lock:  # two commands started together must not both make .venv
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        found = stamp.read_text().split("\0") if stamp.exists() and Path(PYTHON).exists() else []
        if found == wanted:
            return
        begun = time.perf_counter()
        if any(Path(ssl.get_default_verify_paths().capath or "none").glob("*")):
            os.environ.setdefault("UV_SYSTEM_CERTS", "1")  # trust whom this machine trusts, as pip does
        uv = UV if found[:2] == wanted[:2] else make_venv()  # of another Python, moved, never finished: made anew
        stamp.unlink(missing_ok=True)
        into = ["--quiet", "--python", PYTHON]
        own = ["--no-deps", "--no-build-isolation", "--editable", ".", "--editable", TESTKIT]
        sync = [uv, "pip", "sync", *into, "--require-hashes", str(PINS)]
        must("the pinned packages did not install", "set-up: packages", sync)
        must("treadle itself did not install", "set-up: treadle", [uv, "pip", "install", *into, *own])
        stamp.write_text("\0".join(wanted))
        print(f"set-up done in {time.perf_counter() - begun:.1f} s, Python {sys.version.split()[0]}\n", flush=True)


def checks() -> list[Row]:
    steps = {
        "style": tool("ruff", "check", "--output-format=concise", "."),
        "format": tool("ruff", "format", "--check", "--output-format=concise", "."),
        "types": tool("mypy"),
        "layers": [str(BIN / f"lint-imports{EXE}")],
        "dashboard": tool("tools.ui", "--check", "--hash"),
    }
    if any((ROOT / "tests/types").glob("**/*.py")):
        steps |= {"users' types: mypy": tool("mypy", "tests/types"), "... basedpyright": tool("basedpyright")}
    return [step(name, command) for name, command in steps.items()]


def counted(said: str) -> str:
    """The counts of a pytest run as its last line gives them; also those of the tests that showed nothing."""
    found = dict.fromkeys(("passed", "skipped", "expected failures"), 0)
    for count, what in re.findall(r"(\d+) ([a-z]+)", said.rstrip().rsplit("\n", 1)[-1].rsplit(" in ", 1)[0]):
        found[{"xfailed": "expected failures", "error": "errors"}.get(what, what)] = int(count)
    return ", ".join(f"{count} {what}" for what, count in found.items())


def tests(retry: bool, slow: bool) -> tuple[Row, str]:
    """The tests, with `slow` all of them -> the row, and what the last line of the summary adds. A second try never
    turns a run green."""
    command = tool("pytest", "-n", os.environ.get("TEST_WORKERS", WORKERS), *([] if slow else NOT_SLOW))
    begun = time.perf_counter()
    code, said = call([*command, f"--color={'yes' if sys.stdout.isatty() else 'no'}"], keep=True)
    took, plain = f"{time.perf_counter() - begun:.1f} s", re.sub(r"\x1b\[[\d;]*m", "", said)
    counts, failed = counted(plain), re.findall(r"^(?:FAILED|ERROR) (\S+)", plain, re.M)
    if code:
        print(f"-> exit code {code} from: {' '.join(command)}", flush=True)
    more = f" ({counts})" + ("" if slow else "; `--all` runs the slow tests too")
    if retry and code == 1 and len(failed) <= FEW:
        print(f"-> --retry, one test at a time: {' '.join(failed)}", flush=True)
        again, _ = call(tool("pytest", "-n0", "--last-failed", "--last-failed-no-failures=none"))
        more += f"; --retry: {'FAILED AGAIN' if again else 'passed only at the second try'}: {' '.join(failed)}"
    elif retry and code:
        more += f"; --retry: not tried again, more than {FEW} tests failed or the run itself did"
    return ("tests", code == 0, f"{took}, {counts}"), more


def django_six() -> list[Row]:
    """The tests of the Django part on Django 6: it needs Python 3.12, where the ordinary tests do that."""
    if sys.version_info >= (3, 12):
        return []
    begun = time.perf_counter()
    code, said = call(tool("tools.django_six"), keep=True)
    last = said.rstrip().rsplit("\n", 1)[-1]
    told = counted(said) if " passed" in last else last
    return [("tests: Django 6", code == 0, f"{time.perf_counter() - begun:.1f} s, {told}")]


def memory_folder() -> str | None:
    """A file system in memory with room for the files of all tests: without the syncs of a disk, tests of files take
    half the time. None: this machine has none, or the caller has set TMPDIR."""
    if sys.platform != "linux" or "TMPDIR" in os.environ or not os.access(SHM, os.W_OK):
        return None
    found = os.statvfs(SHM)
    free = re.search(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())
    room = min(found.f_bavail * found.f_frsize, int(free[1]) * 1024 if free else 0)
    return None if found.f_flag & os.ST_NOEXEC or room < ROOM else SHM


@contextlib.contextmanager
def fresh_tmp() -> Iterator[None]:
    """TMPDIR is a new folder, removed at the end; so are those in memory whose run was killed."""
    parent = memory_folder()
    if parent:
        for left in Path(parent).glob("tr[0-9]*-*"):
            if not Path(f"/proc/{left.name[2:].split('-')[0]}").exists():
                shutil.rmtree(left, ignore_errors=True)
    before = os.environ.get("TMPDIR")
    name = f"tr{os.getpid()}-"  # short: a socket's path has 107 bytes, and its test adds up to 80
    with tempfile.TemporaryDirectory(prefix=name, dir=parent, ignore_cleanup_errors=True) as made:
        Path(made).chmod(0o755)  # started as root, the tests' PostgreSQL runs as another user
        os.environ["TMPDIR"] = made
        try:
            yield
        finally:
            os.environ.pop("TMPDIR")
            os.environ.update({"TMPDIR": before} if before else {})


def test(args: list[str]) -> int:
    if args[:1] == ["--servers"]:
        return call(tool("tools.servers", *args[1:]))[0]
    if args[:1] == ["--python"]:
        return call(tool("tools.other_python", *args[1:]), inherit=True)[0]
    with fresh_tmp():
        if not set(args) <= {"--all", "--retry"}:
            return call(tool("pytest", *args))[0]
        rows, slow = checks(), "--all" in args
        row, more = tests("--retry" in args, slow)
        return summary([*rows, row, *(django_six() if slow else [])], more)


def lint(args: list[str]) -> int:
    return max(call(tool("ruff", *words, "."))[0] for words in (["check", "--fix"], ["format"]))


def docs(args: list[str]) -> int:
    tools = {"reference": "tools.apidoc", "coverage": "tools.coverage_page", "programs": "tools.programs_page"}
    pages = [step(name, tool(module)) for name, module in tools.items()]
    return summary([*pages, step("site", tool("zensical", "build", *args))])


def soak(args: list[str]) -> int:
    """With paths of tests: those marked as long; else the nemesis of tests/soak."""
    if any(word.startswith("tests") for word in args):
        return call(tool("pytest", "-msoak", "-n0", "-s", "--timeout=0", *args))[0]
    return call(tool("tests.soak", *args), inherit=True)[0]


COMMANDS: dict[str, tuple[Callable[[list[str]], int], str]] = {
    "demo": (lambda args: call([str(BIN / f"treadle{EXE}"), "demo", *args], inherit=True)[0], "show Treadle at work"),
    "test": (
        test,
        "style, types, layers, tests (`--all`: the slow ones too; `--retry`: failed ones once more; `--python 3.15`: "
        "on another Python); with other arguments: only pytest",
    ),
    "check": (lambda args: summary(checks()), "style, types and layers only"),
    "lint": (lint, "repair style and format in place"),
    "ui": (
        lambda args: call(tool("tools.ui", *args))[0],
        "build the dashboard from ui/; `ui --check`: compare with what is committed; `ui --watch`: after each change",
    ),
    "pictures": (
        lambda args: call(tool("tools.pictures", *args))[0],
        "take the pictures of the dashboard in docs/pictures/, of a shop that runs for some minutes first",
    ),
    "docs": (docs, "build the documentation into site/, with the reference from the docstrings"),
    "bench": (
        lambda args: call(tool("benchmarks", *args), inherit=True)[0],
        "measure Treadle and its peers; `bench engine`: Treadle alone",
    ),
    "simulate": (
        lambda args: call(tool("tests.simulate.run", *args))[0],
        "run simulated fleets under many seeds: `simulate --seeds 100000 --storage memory`",
    ),
    "soak": (soak, "kill, cut and stall a fleet and check what is left; `soak tests` runs the long tests"),
    "licenses": (lambda args: call(tool("piplicenses", *args))[0], "list the licences of all that is installed"),
    "changelog": (
        lambda args: call(tool("towncrier", "build", *(args or DRAFT)))[0],
        "print what changes/ adds to CHANGELOG.md",
    ),
    "release": (
        lambda args: call(tool("tools.release", *args), inherit=True)[0],
        "make a release up to the upload: version, changelog, commit, tag, wheel, sdist, checksums; `--dry-run`",
    ),
    "pins": (
        lambda args: max(call([UV, *PIN.split(), *pin.split(), *args])[0] for pin in (PIN_DEV, PIN_IMAGE, PIN_NODE)),
        "compile requirements/*.txt anew; `--upgrade` for newer",
    ),
}


def main(words: list[str]) -> int:
    name, args = (words[0], words[1:]) if words else ("help", [])
    if name not in COMMANDS:
        print("python3 dev.py COMMAND [ARGUMENTS]   (the first one sets up .venv)\n")
        print("\n".join(f"  {it:<10} {COMMANDS[it][1]}" for it in COMMANDS))
        return 0 if name in {"help", "-h", "--help"} else 2
    if sys.version_info < (3, 11):  # noqa: UP036 - whoever starts this may have an older one
        sys.exit(f"Treadle needs Python 3.11 or newer; this is {sys.version.split()[0]}")
    set_up()
    return COMMANDS[name][0](args[1:] if args[:1] == ["--"] else args)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
