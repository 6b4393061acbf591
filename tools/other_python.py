"""Runs the tests on another Python: on an interpreter of this machine, or in a root of Debian that has one.

    python3 dev.py test --python 3.15 [arguments of dev.py test]
    python3 dev.py test --python newest

The last commit is cloned into a temporary folder, which gets a `.venv` of its own. If no such interpreter is installed,
a root with the packages of Debian's unstable suite is made once, in two minutes, and kept in a cache folder. That needs
Linux, root rights and `debootstrap`; mounts are made in a namespace that ends with the run. Exit code 3: there is no
such interpreter and no root can be made.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tools import interpreters

CHECKOUT: Final = Path(__file__).resolve().parents[1]
IN_DEBIAN: Final = ("3.14", "3.15")  # versions of Debian's unstable suite
PACKAGES: Final = ("ca-certificates", "git", "gcc", "libc6-dev", "procps")
COPIED: Final = (  # how the packages' clients reach their servers
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/pip.conf",
    "/etc/xdg/pip",
    "/etc/ssl/certs/ca-certificates.crt",
)
PASSED: Final = re.compile(
    r"(PIP_|UV_|TEST_|NPM_CONFIG_)\w+|\w+_PROXY|SSL_CERT_\w+|NODE_EXTRA_CA_CERTS|TERM", re.IGNORECASE
)
MISSING: Final = 3
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENTER: Final = """
set -e
root=$1; shift
for folder in /proc /dev /sys $SHARED; do mkdir -p "$root$folder"; mount --rbind "$folder" "$root$folder"; done
exec chroot "$root" "$@"
"""


class NoPython(Exception):
    """There is no such interpreter here. The text says why."""


def main(words: list[str]) -> int:
    wanted = IN_DEBIAN[-1] if words[:1] == ["newest"] else words[0] if words else ""
    if not re.fullmatch(r"3\.\d+", wanted):
        print(f"--python: expected a version such as 3.15, or newest; found {wanted or 'nothing'}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="treadle-") as folder:
        try:
            installed = interpreters.found().get(wanted)
            return _run_here(installed, folder, words[1:]) if installed else _run_in_root(wanted, words[1:])
        except NoPython as error:
            print(f"python {wanted}: not tested: {error}", file=sys.stderr)
            return MISSING


def _run_here(python: Path, folder: str, words: list[str]) -> int:
    _clone(f"{folder}/treadle")
    return subprocess.run([python, "dev.py", "test", *words], cwd=f"{folder}/treadle", check=False).returncode


def _run_in_root(version: str, words: list[str]) -> int:
    root = _root(version)
    if subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        raise NoPython("it is not installed, and this system refuses mounts of our own, which its root needs")
    clone = root / "treadle"
    shutil.rmtree(clone, ignore_errors=True)
    _clone(str(clone))
    shared = [place for place in os.environ.get("PIP_FIND_LINKS", "").split() if Path(place).is_dir()]
    passed = [f"{name}={value}" for name, value in os.environ.items() if PASSED.fullmatch(name)]
    inside = (
        f"git config --global --replace-all safe.directory '*'; cd /treadle; exec python{version} dev.py test \"$@\""
    )
    ran = subprocess.run(
        [
            *("unshare", "--mount", "sh", "-c", ENTER, "enter", root),
            *("env", "-i", "HOME=/root", f"PATH={PATH}", "LANG=C.UTF-8", *passed),
            *("sh", "-c", inside, f"python{version}", *words),
        ],
        env={**os.environ, "SHARED": " ".join(shared)},
        check=False,
    )
    return ran.returncode


def _clone(target: str) -> None:
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", CHECKOUT, target], check=True)


def _root(version: str) -> Path:
    """The folder of a root that has this Python; makes it if it does not exist. Raises NoPython."""
    if version not in IN_DEBIAN:
        raise NoPython(f"it is not installed, and Debian's unstable suite has {' and '.join(IN_DEBIAN)}")
    if sys.platform != "linux" or os.geteuid() != 0:
        raise NoPython("it is not installed, and making a root of Debian needs Linux and root rights")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "treadle-roots"
    root = cache / f"debian-python{version}"
    if not (root / "made").exists():
        if (program := shutil.which("debootstrap")) is None:
            raise NoPython("it is not installed, and debootstrap is not either: apt-get install debootstrap")
        shutil.rmtree(root, ignore_errors=True)
        cache.mkdir(parents=True, exist_ok=True)
        print(f"making a root of Debian with Python {version} in {root}", flush=True)
        packages = ",".join((f"python{version}", f"python{version}-venv", *PACKAGES))
        made = subprocess.run(
            [program, "--variant=minbase", f"--include={packages}", "sid", root, _mirror()],
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            raise NoPython(f"debootstrap failed: {(made.stdout + made.stderr).strip().splitlines()[-1:]}")
        (root / "made").touch()
    named = [text for name, text in os.environ.items() if PASSED.fullmatch(name) and text.startswith("/")]
    for place in map(Path, (*COPIED, *(text for text in named if Path(text).is_file()))):
        target = root / place.relative_to("/")
        if place.is_dir():
            shutil.copytree(place, target, dirs_exist_ok=True)
        elif place.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(place, target)
    return root


def _mirror() -> str:
    """The server that this machine's apt takes its packages from. Raises NoPython."""
    words = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    try:
        found = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError) as error:
        raise NoPython(f"it is not installed, and apt does not tell where Debian's packages are: {error}") from None
    main = [place for place in found if place.rstrip("/").endswith("/debian")]
    if not main:
        raise NoPython("it is not installed, and this is no Debian: its root could not be made")
    return main[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
