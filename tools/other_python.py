"""Runs the tests on another Python: on an interpreter of this machine, or in a root of Debian that has one.

    python3 dev.py test --python 3.15 [arguments of dev.py test]
    python3 dev.py test --python newest

The last commit is cloned into a temporary folder, which gets a `.venv` of its own. If no such interpreter is installed,
a root with the packages of Debian's unstable suite is made once, in two minutes, and kept in a cache folder
(`TEST_ROOTS` names another one). That needs Linux, root rights and `debootstrap`; mounts are made in a namespace that
ends with the run. Exit code 69: no test has run, because there is no such interpreter, no root can be made, or the
pinned packages cannot be installed.
"""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dev import UNAVAILABLE
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
HOME: Final = "/root"  # of the run in a root
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
            code = _run_here(installed, folder, words[1:]) if installed else _run_in_root(wanted, words[1:])
            if code == UNAVAILABLE:
                raise NoPython("the pinned packages cannot be installed there, see above")
            return code
        except NoPython as error:
            print(f"python {wanted}: not tested: {error}", file=sys.stderr)
            return UNAVAILABLE


def _run_here(python: Path, folder: str, words: list[str]) -> int:
    _clone(f"{folder}/treadle")
    return subprocess.run([python, "dev.py", "test", *words], cwd=f"{folder}/treadle", check=False).returncode


def _run_in_root(version: str, words: list[str]) -> int:
    root = _root(version)
    if subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        raise NoPython("it is not installed, and this system refuses mounts of our own, which its root needs")
    shared = sorted({str(place) for place in _folders_of_packages()})
    passed = [f"{name}={value}" for name, value in os.environ.items() if PASSED.fullmatch(name)]
    with tempfile.TemporaryDirectory(prefix="treadle-", dir=root) as clone:  # several runs may use one root
        _clone(clone)
        os.chmod(clone, 0o755)  # tests run programs as other users
        enter = f"git config --global --replace-all safe.directory '*'; cd /{Path(clone).name}"
        ran = subprocess.run(
            [
                *("unshare", "--mount", "sh", "-c", ENTER, "enter", root),
                *("env", "-i", f"HOME={HOME}", f"PATH={PATH}", "LANG=C.UTF-8", *passed),
                *("sh", "-c", f'{enter}; exec python{version} dev.py test "$@"', f"python{version}", *words),
            ],
            env={**os.environ, "SHARED": " ".join(shared)},
            check=False,
        )
    return ran.returncode


def _pip_settings() -> list[Path]:
    """The files that pip reads on this machine, apart from those of a virtual environment."""
    named = os.environ.get("PIP_CONFIG_FILE")
    user = [Path.home() / ".config/pip/pip.conf", Path.home() / ".pip/pip.conf"]
    return [*(Path(named) for named in [named] if named), Path("/etc/xdg/pip/pip.conf"), Path("/etc/pip.conf"), *user]


def _folders_of_packages() -> Iterator[Path]:
    """The folders of this machine that pip installs from: those of PIP_FIND_LINKS and those that its files name. The
    pages of an index link to files next to its folder, so its parent is needed."""
    texts = [os.environ.get(name, "") for name in ("PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")]
    for file in _pip_settings():
        settings = configparser.RawConfigParser(strict=False)
        settings.read(file)
        texts += [text for section in settings.sections() for _, text in settings.items(section)]
    for word in " ".join(texts).split():
        place = Path(word.removeprefix("file://"))
        if place.is_absolute() and place.is_dir():
            yield place.parent if word.startswith("file://") and len(place.parts) > 2 else place


def _clone(target: str) -> None:
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", CHECKOUT, target], check=True)


def _root(version: str) -> Path:
    """The folder of a root that has this Python; makes it if it does not exist. Raises NoPython."""
    if version not in IN_DEBIAN:
        raise NoPython(f"it is not installed, and Debian's unstable suite has {' and '.join(IN_DEBIAN)}")
    if sys.platform != "linux" or os.geteuid() != 0:
        raise NoPython("it is not installed, and making a root of Debian needs Linux and root rights")
    own = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "treadle-roots"
    cache = Path(os.environ.get("TEST_ROOTS") or own)
    root = cache / f"debian-python{version}"
    cache.mkdir(parents=True, exist_ok=True)
    import fcntl  # Windows has none

    with (cache / "lock").open("w") as lock:  # two runs that begin together must not both make it
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / "made").exists():
            _make_root(version, root)
        _copy_settings(root)
    return root


def _make_root(version: str, root: Path) -> None:
    if (program := shutil.which("debootstrap")) is None:
        raise NoPython("it is not installed, and debootstrap is not either: apt-get install debootstrap")
    shutil.rmtree(root, ignore_errors=True)
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


def _copy_settings(root: Path) -> None:
    """How the packages' clients reach their servers: the files of this machine, of its user, and those that variables
    name."""
    named = [text for name, text in os.environ.items() if PASSED.fullmatch(name) and text.startswith("/")]
    for place in map(Path, (*COPIED, *(text for text in named if Path(text).is_file()))):
        target = root / place.relative_to("/")
        if place.is_dir():
            shutil.copytree(place, target, dirs_exist_ok=True)
        elif place.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(place, target)
    for name in (".config/pip/pip.conf", ".pip/pip.conf", ".config/uv/uv.toml"):
        target = root / HOME[1:] / name
        if (Path.home() / name).is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(Path.home() / name, target)
        else:
            target.unlink(missing_ok=True)


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
