"""The locked environments of the peers, made on demand under .bench-cache from their pins, one for each Python.

Treadle's own environment is the current one, or for another Python one with the same pins. A peer that needs a newer
Python gets one that is found on this machine, or is reported as unavailable.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import glob
import hashlib
import os
import platform
import re
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PEERS: Final = ROOT / "benchmarks/peers"
CACHE: Final = Path(os.environ.get("BENCH_CACHE") or ROOT / ".bench-cache")
PYTHONS: Final = ("~/.pyenv/versions/3.*/bin/python3", "~/.local/share/uv/python/cpython-3.*/bin/python3")
SLOW: Final = 600  # seconds an installation may take
OWN_PINS: Final = ROOT / "requirements/dev.txt"
Version = tuple[int, int]
OLDEST: Final[Version] = (3, 11)


class Unavailable(RuntimeError):
    """The environment of a peer is not available; the message gives the reason."""


def uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.exists() else shutil.which("uv")
    if not found:
        raise Unavailable("uv is missing: run this by `python3 dev.py bench`")
    return found


def peers() -> list[str]:
    """All peers with requirements."""
    return sorted(path.stem for path in PEERS.glob("*.in"))


def needs(peer: str) -> Version:
    """The oldest Python that a peer supports, from the first line of its requirements: `# python: 3.12`."""
    found = re.match(r"# python: (\d+)\.(\d+)", (PEERS / f"{peer}.in").read_text())
    return (int(found[1]), int(found[2])) if found else OLDEST


@dataclass(frozen=True)
class Interpreter:
    """A Python to measure systems on: the interpreter itself, not a virtual environment."""

    path: str
    version: str  # such as 3.13.0

    @property
    def minor(self) -> str:
        return self.version.rpartition(".")[0]

    @property
    def number(self) -> Version:
        major, minor = self.minor.split(".")
        return int(major), int(minor)


OURS: Final = Interpreter(
    os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable), platform.python_version()
)
ASK: Final = "import sys, platform; print(getattr(sys, '_base_executable', sys.executable), platform.python_version())"


def _asked(path: str) -> Interpreter | None:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired, ValueError):
        said = subprocess.run([path, "-c", ASK], capture_output=True, text=True, check=False, timeout=20)
        found, version = said.stdout.rsplit(maxsplit=1)
        return Interpreter(os.path.realpath(found), version)
    return None


def _here(minors: Iterable[int]) -> Iterator[Interpreter]:
    """The interpreters on this machine, those named after these versions of Python 3 first."""
    named = [shutil.which(f"python3.{minor}") for minor in minors]
    kept = [path for pattern in PYTHONS for path in sorted(glob.glob(os.path.expanduser(pattern)))]
    for path in (*filter(None, named), *kept):
        if (found := _asked(path)) is not None:
            yield found


def named(word: str) -> Interpreter:
    """The interpreter with this path, or of this version, such as 3.13. Raises Unavailable."""
    if version := re.fullmatch(r"3\.(\d+)", word):
        for found in (OURS, *_here([int(version[1])])):
            if found.minor == word:
                return found
        raise Unavailable(f"--python: there is no Python {word} on the path or where pyenv and uv keep theirs")
    known = _asked(word)
    if known is None or known.number < OLDEST:
        raise Unavailable(f"--python: expected a version as 3.13, or the path of a Python from 3.11 on, found {word!r}")
    return known


def newer(oldest: Version, base: Interpreter) -> Interpreter:
    """The base if it is new enough for a peer, otherwise the first one on this machine that is. Raises Unavailable."""
    if base.number >= oldest:
        return base
    for found in _here(range(oldest[1], oldest[1] + 5)):
        if found.number >= oldest:
            return found
    raise Unavailable(f"needs Python {oldest[0]}.{oldest[1]} or newer, and found only {base.version}")


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Hold a lock, so that two runs do not make the same environment."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def python(peer: str, base: Interpreter = OURS) -> str:
    """The interpreter of a peer's environment, made if it is missing or outdated; "" is Treadle. Raises Unavailable.

    For Treadle it is the current one, or with another Python one with the same pins.
    """
    if not peer and base == OURS:
        return sys.executable
    pins = PEERS / f"{peer}.txt" if peer else OWN_PINS
    if not pins.exists():
        raise Unavailable(f"no pins: run `python3 dev.py bench pins {peer}`")
    base = newer(needs(peer), base) if peer else base
    wanted = f"{hashlib.sha256(pins.read_bytes()).hexdigest()} {base.path} {base.version}"
    place = CACHE / "envs" / base.minor / (peer or "treadle")
    stamp, inside = place / "stamp", place / "bin/python"
    with locked():
        if inside.exists() and stamp.exists() and stamp.read_text() == wanted:
            return str(inside)
        print(f"making the environment of {place.name} on {base.version} ...", file=sys.stderr, flush=True)
        _uv("venv", "--quiet", "--clear", "--python", base.path, str(place))
        into = ("--quiet", "--python", str(inside))
        _uv("pip", "install", *into, "--require-hashes", "-r", str(pins))
        if not peer:
            _uv(
                "pip",
                "install",
                *into,
                "--no-deps",
                "--no-build-isolation",
                "--editable",
                str(ROOT),
                path=place / "bin",
            )
        stamp.write_text(wanted)
    return str(inside)


def _uv(*words: str, path: Path | None = None) -> None:
    """Run uv. `path`: folder with the build tools."""
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    if path is not None:
        environment["PATH"] = f"{path}{os.pathsep}{environment.get('PATH', '')}"
    if any(Path(ssl.get_default_verify_paths().capath or "none").glob("*")):
        environment.setdefault("UV_SYSTEM_CERTS", "1")  # use the certificates of the system, as pip does
    ran = subprocess.run(
        [uv(), *words], capture_output=True, text=True, env=environment, timeout=SLOW, check=False, cwd=ROOT
    )
    if ran.returncode:
        raise Unavailable(f"uv {' '.join(words[:2])} failed: {ran.stderr.strip()[-800:]}")


def pin(names: list[str], more: list[str]) -> None:
    """Compile the pins of these peers (default: all): one file for all systems, with hashes, without an index."""
    for name in names or peers():
        if not (PEERS / f"{name}.in").exists():
            raise Unavailable(f"there is no {name} among {', '.join(peers())}")
        oldest = ".".join(map(str, needs(name)))
        _uv(
            "pip",
            "compile",
            "--quiet",
            "--universal",
            "--python-version",
            oldest,
            "--generate-hashes",
            "--no-emit-index-url",
            "--no-header",
            *more,
            "--output-file",
            f"benchmarks/peers/{name}.txt",
            f"benchmarks/peers/{name}.in",
        )
        print(f"benchmarks/peers/{name}.txt", flush=True)


def main(words: list[str]) -> int:
    """`bench envs`: make environments ahead of a run."""
    parser = argparse.ArgumentParser(prog="dev.py bench envs", description="Make the environments of the peers.")
    parser.add_argument("peers", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--python", default="", metavar="PATH", help="or a version, as 3.13; default: our own")
    args = parser.parse_args(words)
    failed = 0
    base = named(args.python) if args.python else OURS
    for peer in args.peers or ["", *peers()]:
        try:
            print(f"{peer or 'treadle'}: {python(peer, base)}", flush=True)
        except Unavailable as error:
            failed = 1
            print(f"{peer or 'treadle'}: {error}", flush=True)
    return failed
