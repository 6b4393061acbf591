"""The browser of the tests: Chromium from npm, unpacked without root. Makes it on first use and prints its path.

It is TEST_CHROME, else `.boot/browser/<version>/chromium`. The package has one program and the libraries that it needs
besides glibc; no code of the package runs.

    python -m tools.browser
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import tarfile
from pathlib import Path
from typing import IO, Final, NamedTuple

from tools import node

SOURCE: Final = node.ROOT / "requirements/browser"
PACKAGE: Final = "@sparticuz/chromium"
AXE: Final = "axe-core"
LIBRARIES: Final = "al2023"  # the archive of libraries for systems that have only glibc
CHUNK: Final = 1 << 20  # bytes decompressed at once

# The browser may contact no other host, and must not depend on what a test machine has.
FLAGS: Final = (
    "--disable-background-networking",
    "--disable-client-side-phishing-detection",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-domain-reliability",
    "--disable-features=OptimizationHints,MediaRouter,Translate,AutofillServerCommunication,CertificateTransparencyComponentUpdater",
    "--disable-sync",
    "--metrics-recording-only",
    "--no-first-run",
    "--no-pings",
    "--no-proxy-server",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1, EXCLUDE *.localhost",
)

# The font of the package comes first, so that texts are as wide on every machine; the system has the other signs.
FONTS: Final = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir prefix="relative">fonts</dir>
  <dir>/usr/share/fonts</dir>
  <cachedir prefix="xdg">fontconfig</cachedir>
  <alias><family>system-ui</family><prefer><family>Open Sans</family></prefer></alias>
  <alias><family>sans-serif</family><prefer><family>Open Sans</family></prefer></alias>
</fontconfig>
"""


class NoBrowser(Exception):
    """There is no browser for the tests. The message gives the reason and what to do."""


class Browser(NamedTuple):
    """A browser on this machine.

    program    its path
    libraries  a folder for LD_LIBRARY_PATH, or None
    fonts      a folder with fonts.conf, or None
    axe        axe.min.js
    """

    program: Path
    libraries: Path | None
    fonts: Path | None
    axe: Path


def pinned(package: str) -> str:
    """The version of a package in the lock."""
    lock = json.loads((SOURCE / "package-lock.json").read_text())
    return str(lock["packages"][f"node_modules/{package}"]["version"])


def browser() -> Browser:
    """The browser, made if need be: about 6 s, and 330 MB while it is made. Raises NoBrowser."""
    folder = node.BOOT / "browser" / f"{pinned(PACKAGE)}-axe-{pinned(AXE)}"
    made = Browser(folder / "chromium", folder / LIBRARIES / "lib", folder / "fonts", folder / "axe.min.js")
    given = os.environ.get("TEST_CHROME")
    if given and not Path(given).is_file():
        raise NoBrowser(f"TEST_CHROME={given}: there is no such file; name the program of a Chromium")
    if not made.axe.exists():
        with node.locked("browser"):
            if not made.axe.exists():
                _make(folder, bool(given))
    return made._replace(program=Path(given), libraries=None, fonts=None) if given else made


def _make(folder: Path, only_axe: bool) -> None:
    if sys.platform != "linux" and not only_axe:
        raise NoBrowser(f"{PACKAGE} is a program for Linux; on {sys.platform} give TEST_CHROME=/path/to/chromium")
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    for name in ("package.json", "package-lock.json", ".npmrc"):
        shutil.copy(SOURCE / name, part)
    try:
        node.install(part, "--omit=optional")
    except node.NoNode as error:
        raise NoBrowser(f"{error}\nor give TEST_CHROME=/path/to/chromium, which needs only {AXE} from there") from error
    packages = part / "node_modules"
    if not only_axe:
        _unpack(packages / PACKAGE / "bin", part)
        (part / "fonts/fonts.conf").write_text(FONTS)
    shutil.copy(packages / AXE / "axe.min.js", part / "axe.part")
    shutil.rmtree(packages)
    (part / "axe.part").rename(part / "axe.min.js")  # last: a folder with this file is complete
    if folder.exists():
        shutil.rmtree(folder)
    part.rename(folder)


def _unpack(source: Path, into: Path) -> None:
    if (source / "x64").is_dir():
        source = source / ("arm64" if os.uname().machine in ("aarch64", "arm64") else "x64")
    with (into / "chromium").open("wb") as to:
        _decompress(source / "chromium.br", to)
    (into / "chromium").chmod(0o755)
    for archive in sorted(source.glob("*.tar.br")):
        data = io.BytesIO()
        _decompress(archive, data)
        data.seek(0)
        with tarfile.open(fileobj=data) as packed:
            packed.extractall(into / archive.name.partition(".")[0], filter="data")


def _decompress(path: Path, to: IO[bytes]) -> None:
    import brotli  # type: ignore[import-untyped]

    packed = brotli.Decompressor()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            to.write(packed.process(chunk))


if __name__ == "__main__":
    try:
        print(browser().program)
    except NoBrowser as error:
        sys.exit(str(error))
