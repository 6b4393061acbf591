"""The locked environments of the peers: made on demand under .bench-cache, each from its own pins.

Treadle's own environment is the one this runs in. A peer that needs a newer Python than that gets one that is found on
this machine, or is reported as missing it.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import os
import re
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PEERS: Final = ROOT / "benchmarks/peers"
CACHE: Final = Path(os.environ.get("BENCH_CACHE") or ROOT / ".bench-cache")
PYTHONS: Final = ("~/.pyenv/versions/3.*/bin/python3", "~/.local/share/uv/python/cpython-3.*/bin/python3")
SLOW: Final = 600  # s an installation may take
Version = tuple[int, int]


class Unavailable(RuntimeError):
    """The environment of a peer cannot be had; the message says why."""


def uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.exists() else shutil.which("uv")
    if not found:
        raise Unavailable("uv is missing: run this by `python3 dev.py bench`")
    return found


def peers() -> list[str]:
    """All that have requirements."""
    return sorted(path.stem for path in PEERS.glob("*.in"))


def needs(peer: str) -> Version:
    """The oldest Python a peer runs on, as the first line of its requirements says: `# python: 3.12`."""
    found = re.match(r"# python: (\d+)\.(\d+)", (PEERS / f"{peer}.in").read_text())
    return (int(found[1]), int(found[2])) if found else (3, 11)


def interpreter(oldest: Version) -> str:
    """Ours if it is new enough, else the oldest one here that is. Raises Unavailable."""
    if sys.version_info[:2] >= oldest:
        return sys.executable
    named = [shutil.which(f"python3.{minor}") for minor in range(oldest[1], oldest[1] + 5)]
    kept = [path for pattern in PYTHONS for path in sorted(glob.glob(os.path.expanduser(pattern)))]
    for path in (*filter(None, named), *kept):
        said = subprocess.run(
            [path, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True, check=False
        )
        if said.returncode == 0 and tuple(map(int, said.stdout.split())) >= oldest:
            return path
    raise Unavailable(
        f"needs Python {oldest[0]}.{oldest[1]} or newer, and none was found beside {sys.version.split()[0]}"
    )


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Two runs must not make one environment."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def python(peer: str) -> str:
    """The interpreter of a peer's environment, which is made if it is missing or old. Raises Unavailable."""
    if not peer:
        return sys.executable
    pins = PEERS / f"{peer}.txt"
    if not pins.exists():
        raise Unavailable(f"no pins: run `python3 dev.py bench pins {peer}`")
    base = interpreter(needs(peer))
    wanted = f"{hashlib.sha256(pins.read_bytes()).hexdigest()} {base} {sys.version if base == sys.executable else ''}"
    place = CACHE / "envs" / peer
    stamp, inside = place / "stamp", place / "bin/python"
    with locked():
        if inside.exists() and stamp.exists() and stamp.read_text() == wanted:
            return str(inside)
        print(f"making the environment of {peer} ...", file=sys.stderr, flush=True)
        _uv("venv", "--quiet", "--clear", "--python", base, str(place))
        _uv("pip", "install", "--quiet", "--python", str(inside), "--require-hashes", "-r", str(pins))
        stamp.write_text(wanted)
    return str(inside)


def _uv(*words: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    if any(Path(ssl.get_default_verify_paths().capath or "none").glob("*")):
        environment.setdefault("UV_SYSTEM_CERTS", "1")  # trust whom this machine trusts, as pip does
    ran = subprocess.run(
        [uv(), *words], capture_output=True, text=True, env=environment, timeout=SLOW, check=False, cwd=ROOT
    )
    if ran.returncode:
        raise Unavailable(f"uv {' '.join(words[:2])} failed: {ran.stderr.strip()[-800:]}")


def pin(names: list[str], more: list[str]) -> None:
    """Compile the pins of these peers (none named: all): one file for all systems, with hashes, without an index."""
    for name in names or peers():
        if not (PEERS / f"{name}.in").exists():
            raise Unavailable(f"there is no {name} among {', '.join(peers())}")
        oldest = ".".join(map(str, needs(name)))
        _uv(
            "pip", "compile", "--quiet", "--universal", "--python-version", oldest, "--generate-hashes",
            "--no-emit-index-url", "--no-header", *more, "--output-file", f"benchmarks/peers/{name}.txt",
            f"benchmarks/peers/{name}.in",
        )  # fmt: skip
        print(f"benchmarks/peers/{name}.txt", flush=True)
