"""A real MariaDB for the tests of one process. Without one, the tests that need it are skipped with the reason.

The program is TEST_MARIADB_BIN, else `mariadbd` of the system, else that of Debian's packages, which are unpacked into
`.boot/mariadb` without root in a few seconds. Their version is the distribution's, so no hash can be pinned.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pymysql
import pytest

from tests.servers.process import VERSIONS, Process, ServerFailed
from tools import node

PACKAGES: Final = ("mariadb-server-core", "libaio1", "libaio1t64", "liburing2")  # besides what every system has
SYSTEM: Final = ("mariadbd", "/usr/sbin/mariadbd", "/usr/libexec/mariadbd")
FIRST: Final = "USE mysql;\nSET @current_hostname='localhost', @auth_root_socket=NULL, @skip_auth_anonymous=1;\n"
LAST: Final = """REPLACE INTO global_priv VALUES ('127.0.0.1', 'root', '{"access": 18446744073709551615}');\n"""
SCRIPTS: Final = ("mysql_system_tables.sql", "mysql_system_tables_data.sql")
SETTINGS: Final = ("--innodb-log-file-size=8M", "--innodb-buffer-pool-size=32M")


class Program(NamedTuple):
    """A MariaDB of this machine: its program, the folder of its scripts, and a folder for LD_LIBRARY_PATH."""

    path: Path
    share: Path
    libraries: Path | None = None


class NoMariaDB(Exception):
    """There is no MariaDB for the tests; the message gives the reason."""


@functools.cache
def program() -> Program:
    """Raises NoMariaDB."""
    asked = os.environ.get("TEST_MARIADB_BIN")
    for name in (asked,) if asked else SYSTEM:
        found = shutil.which(name)
        if found is not None:
            path = Path(found).resolve()
            return Program(path, _scripts(path.parent.parent))
    if asked:
        raise NoMariaDB(f"TEST_MARIADB_BIN: expected a program, found {asked!r}")
    return _unpacked()


def _scripts(root: Path) -> Path:
    for folder in (root / "share/mysql", root / "share/mariadb"):
        if (folder / SCRIPTS[0]).is_file():
            return folder
    raise NoMariaDB(f"no {SCRIPTS[0]} in {root}/share: it belongs to the server")


def _unpacked() -> Program:
    folder = node.BOOT / "mariadb"
    if not folder.is_dir():
        if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
            raise NoMariaDB("no mariadbd on PATH, and no apt-get to get one with; set TEST_MARIADB_BIN")
        with node.locked("mariadb"):
            if not folder.is_dir():
                _unpack(folder)
    [libraries] = {path.parent for path in folder.rglob("liburing.so.2")} or {folder}
    return Program(folder / "usr/sbin/mariadbd", _scripts(folder / "usr"), libraries)


def _unpack(folder: Path) -> None:
    part = folder.with_name("mariadb.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    for package in PACKAGES:  # libaio1 has another name since Debian 13: one of the two is enough
        told = subprocess.run(["apt-get", "download", package], cwd=part, capture_output=True, text=True, check=False)
        if told.returncode and not package.startswith("libaio1"):
            raise NoMariaDB(f"no mariadbd on PATH, and apt-get download {package} failed: {told.stderr.strip()[-300:]}")
    for archive in part.glob("*.deb"):
        subprocess.run(["dpkg", "-x", archive, part], check=True, capture_output=True)
        archive.unlink()
    part.rename(folder)


class MariaDB(Process):
    """A server of its own. Its data does not wait for the disk."""

    name = "mariadb"

    def __init__(self) -> None:
        super().__init__()
        self._program = program()
        told = subprocess.run(
            [self._program.path, "--version"], capture_output=True, text=True, env=self._env(), check=True
        )
        VERSIONS.add(f"MariaDB {told.stdout.split('Ver ')[-1].split()[0]} ({self._program.path})")
        self._initialise()

    def _env(self) -> dict[str, str]:
        libraries = self._program.libraries
        return {"PATH": "/usr/bin:/bin"} | ({} if libraries is None else {"LD_LIBRARY_PATH": str(libraries)})

    def _words(self) -> list[str]:
        as_root = ["--user=root"] if os.name == "posix" and os.geteuid() == 0 else []
        messages = f"--lc-messages-dir={self._program.share}"
        return ["--no-defaults", *as_root, f"--datadir={self.folder / 'data'}", messages, *SETTINGS]

    def _initialise(self) -> None:
        (self.folder / "data/mysql").mkdir(parents=True)
        script = FIRST + "".join((self._program.share / name).read_text("utf-8") for name in SCRIPTS) + LAST
        command = [str(self._program.path), *self._words(), "--bootstrap"]
        made = subprocess.run(command, input=script, capture_output=True, text=True, env=self._env(), check=False)
        if made.returncode:
            raise ServerFailed(f"{' '.join(command)} failed:\n{made.stderr[-2_000:]}")

    def command(self) -> Sequence[str]:
        libraries = self._program.libraries
        given = ["/usr/bin/env", f"LD_LIBRARY_PATH={libraries}"] if libraries is not None else []
        words = [f"--port={self.port}", "--bind-address=127.0.0.1", f"--socket={self.folder / 's'}"]
        commits = "--innodb-flush-log-at-trx-commit=0"
        return [*given, str(self._program.path), *self._words(), *words, commits, "--skip-log-bin"]

    def answers(self) -> bool:
        try:
            pymysql.connect(host="127.0.0.1", port=self.port, user="root").close()
        except pymysql.MySQLError:
            return False
        return True

    def url_of(self, database: str) -> str:
        return f"mysql://root@127.0.0.1:{self.port}/{database}"

    def database(self) -> str:
        """The URL of a new database."""
        name = f"d{next(_numbers)}"
        with pymysql.connect(host="127.0.0.1", port=self.port, user="root") as made:
            made.cursor().execute(f"CREATE DATABASE {name}")
        return self.url_of(name)


_numbers = itertools.count()


@functools.cache
def shared() -> MariaDB:
    """The server of all tests of this process. Skips the test if there is no MariaDB on this machine."""
    try:
        made = MariaDB()
    except NoMariaDB as error:
        pytest.skip(f"MariaDB: {error}")
    atexit.register(made.close)
    return made.start()
