"""Builds the dashboard from `ui/` into `src/treadle/server/dashboard/static/`.

The build is committed: users need no Node.js.

    python3 dev.py ui            check the types and build
    python3 dev.py ui --check    build elsewhere and compare every byte; with --hash only the hash of the sources
    python3 dev.py ui --watch    build after each change and serve the result; more arguments go to `treadle dashboard`

`static/build.json` has the SHA-256 of the sources and of each built file, so that `--check --hash` needs no Node.js.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from tools import node

ROOT: Final = node.ROOT
SOURCE: Final = ROOT / "ui"
STATIC: Final = ROOT / "src/treadle/server/dashboard/static"
NO_SOURCE: Final = {"node_modules", "dist", ".cache"}
INSTALLED: Final = SOURCE / "node_modules/.treadle-lock"  # the hash of the lock whose packages are installed
PAUSE: Final = 0.3  # s between looks at the sources with --watch
ENTRY: Final = re.compile(r"app-[A-Z0-9]+\.(js|css)")
IMPORT: Final = re.compile(r'(?:from|import)"\./([\w-]+\.js)"')  # a static one; `import("./x.js")` is not
SCRIPT: Final = (
    '    <script type="module"'  # the line of the page before which the other scripts of the first page are named
)
WORDS: Final = "python3 dev.py ui"


class Bar(NamedTuple):
    """The most that a browser may load, in bytes as they are sent. Tests and `dev.py bench dashboard` hold it."""

    what: str
    bytes: int
    most: int


def bars(folder: Path = STATIC) -> list[Bar]:
    """What a reader waits for, and what the dashboard costs a slow line in all: 1.6 Mbit/s bring 40 KB in 0.2 s. The
    other pages and the dialogs are read once the first page rests."""
    assets = folder / "assets"
    first = {*first_scripts(assets), *(path.name for path in assets.glob("app-*.css"))}
    sizes = {path.stem: path.stat().st_size for path in assets.glob("*.gz")}
    return [
        Bar("first page: scripts and styles, gzipped", sum(sizes[name] for name in first), 40_000),
        Bar("all pages: scripts and styles, gzipped", sum(sizes.values()), 80_000),
    ]


def first_scripts(assets: Path) -> list[str]:
    """The names of the scripts of the first page: the entry, and what it imports before anything is shown."""
    left, found = sorted(path.name for path in assets.glob("app-*.js")), list[str]()
    while left:
        found.append(left.pop(0))
        imported = IMPORT.findall((assets / found[-1]).read_text())
        left += [name for name in imported if name not in found and name not in left]
    return found


class Stale(Exception):
    """The built files do not belong to the sources. The message says which ones differ."""


def sources() -> list[Path]:
    """The files that the build depends on, sorted by path."""
    found = [path for path in SOURCE.rglob("*") if path.is_file()]
    return sorted(path for path in found if not NO_SOURCE & set(path.relative_to(SOURCE).parts))


def digest_of_sources() -> str:
    """The SHA-256 of the names and contents of all sources."""
    total = hashlib.sha256()
    for path in sources():
        name = path.relative_to(SOURCE).as_posix()
        total.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of each built file; of a compressed one, of what it holds, because compressors differ."""
    found = {}
    for path in sorted(each for each in folder.rglob("*") if each.is_file() and each.name != "build.json"):
        data = path.read_bytes()
        content = gzip.decompress(data) if path.suffix == ".gz" else data
        found[path.relative_to(folder).as_posix()] = hashlib.sha256(content).hexdigest()
    return found


def check_hash() -> None:
    """Raise Stale unless the committed files are those that were built from these sources."""
    try:
        built = json.loads((STATIC / "build.json").read_text())
    except (OSError, ValueError) as error:
        raise Stale(
            f"there is no build of the dashboard in {STATIC.relative_to(ROOT)} ({error}); run {WORDS}"
        ) from None
    if built["sources"] != digest_of_sources():
        raise Stale(f"ui/ has changed since {STATIC.relative_to(ROOT)} was built; run {WORDS}, and commit both")
    _compare(built["files"], digests(STATIC), "build.json")


def check_build() -> None:
    """Build in another folder. Raise Stale if any byte differs from the committed files."""
    check_hash()
    with tempfile.TemporaryDirectory(prefix="treadle-ui-") as folder:
        build(Path(folder))
        _compare(digests(Path(folder)), digests(STATIC), "a build of ui/")


def _compare(wanted: dict[str, str], found: dict[str, str], what: str) -> None:
    differ = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    if differ:
        words = ", ".join(differ[:6])
        raise Stale(f"{STATIC.relative_to(ROOT)} differs from {what} in {words}; run {WORDS}, and commit the result")


# --- building


def packages() -> None:
    """Install the packages of ui/package-lock.json, unless they are there."""
    wanted = hashlib.sha256((SOURCE / "package-lock.json").read_bytes()).hexdigest()
    with node.locked("ui"):
        if not INSTALLED.exists() or INSTALLED.read_text() != wanted:
            node.install(SOURCE)
            INSTALLED.write_text(wanted)


def script(name: str, *more: str) -> None:
    """Run a script of ui/package.json. Raises Stale with its output if it fails."""
    command, folder = node.npm()
    with tempfile.TemporaryDirectory(prefix="treadle-npm-") as cache:
        words = [*command, "run", "--silent", name, *(["--", *more] if more else [])]
        env = node.environment(folder, cache)
        done = subprocess.run(
            words, cwd=SOURCE, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
    if done.returncode:
        raise Stale(f"`npm run {name}` in ui/ failed:\n{done.stdout.strip()}")


def build(into: Path) -> None:
    """Check the types, bundle, and write the whole folder anew."""
    packages()
    script("types")
    dist = SOURCE / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    script("build")
    outputs = sorted(path for path in dist.iterdir() if path.suffix in (".js", ".css", ".svg", ".png"))
    entries = {path.suffix: path.name for path in outputs if ENTRY.fullmatch(path.name)}
    if entries.keys() < {".js", ".css"}:
        raise Stale(f"expected app-HASH.js and app-HASH.css from `npm run build`, found {[p.name for p in outputs]}")
    part = into.with_name(f"{into.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    (part / "assets").mkdir(parents=True)
    for path in outputs:
        data = path.read_bytes()
        (part / "assets" / path.name).write_bytes(data)
        if path.suffix != ".png":
            (part / "assets" / f"{path.name}.gz").write_bytes(gzip.compress(data, 9, mtime=0))
    page = (SOURCE / "index.html").read_text()
    for suffix, name in entries.items():
        page = page.replace(f'"assets/app{suffix}"', f'"assets/{name}"')
    for name in first_scripts(part / "assets")[1:]:  # so that all of them are read in one round trip
        page = page.replace(SCRIPT, f'    <link rel="modulepreload" href="assets/{name}">\n{SCRIPT}')
    (part / "index.html").write_text(page)
    (part / "LICENSES").write_text("\n".join(licenses(json.loads((dist / "meta.json").read_text()))))
    stamp = {"sources": digest_of_sources(), "files": digests(part)}
    (part / "build.json").write_text(json.dumps(stamp, indent=1) + "\n")
    shutil.rmtree(into, ignore_errors=True)
    part.rename(into)


def licenses(meta: dict[str, Any]) -> Iterator[str]:
    """The licence of each package that is part of the bundle."""
    inputs = [path.split("node_modules/")[-1] for path in meta["inputs"] if "node_modules/" in path]
    for name in sorted({"/".join(path.split("/")[: 2 if path.startswith("@") else 1]) for path in inputs}):
        folder = SOURCE / "node_modules" / name
        version = json.loads((folder / "package.json").read_text())["version"]
        texts = sorted(folder.glob("LICEN[CS]E*"))
        if not texts:
            raise Stale(f"the package {name} is bundled and has no licence file: it may not be published")
        yield f"{name} {version}\n\n{texts[0].read_text().strip()}\n"


def watch(words: list[str]) -> int:
    """Build and serve after each change, until Ctrl-C."""
    server: subprocess.Popen[bytes] | None = None
    seen = ""
    try:
        while True:
            now = digest_of_sources()
            if now != seen:
                seen = now
                try:
                    build(STATIC)
                except Stale as error:
                    print(error, flush=True)
                else:
                    print(sizes(), flush=True)
                    if server is not None:
                        server.terminate()
                        server.wait()
                    command = [sys.executable, "-m", "treadle", "dashboard", "--no-open", "--port", "7373", *words]
                    server = subprocess.Popen(command)
            time.sleep(PAUSE)
    except KeyboardInterrupt:
        return 0
    finally:
        if server is not None and server.poll() is None:
            server.terminate()
            server.wait()


def sizes() -> str:
    """The compressed sizes of what a browser loads."""
    found = [f"{each.what}: {each.bytes / 1000:.1f} of {each.most / 1000:g} KB" for each in bars()]
    return f"built; {'; '.join(found)}"


def main(words: list[str]) -> int:
    try:
        if words == ["--check", "--hash"]:
            check_hash()
        elif words == ["--check"]:
            check_build()
        elif words[:1] == ["--watch"]:
            return watch(words[1:])
        elif words:
            print(__doc__, file=sys.stderr)
            return 2
        else:
            build(STATIC)
            print(sizes())
    except (Stale, node.NoNode) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main(sys.argv[1:]))
