"""Runs the Django project of these tests in processes of its own, on a SQLite file or a database of the PostgreSQL."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.servers import postgres
from tests.storage.postgres.support import admin

PROJECT = Path(__file__).parent / "project"
KINDS = ("sqlite", "postgres")

_numbers = itertools.count()


class Project:
    """The project on one database."""

    def __init__(self, folder: Path, database: str) -> None:
        self.folder = folder
        self.environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "settings",
            "PYTHONPATH": os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")]),
            "TEST_PROJECT_DATABASE": database,
            "TEST_PROJECT_FOLDER": str(folder),
        }

    def start(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """A process of Python with these arguments, in the folder of the project."""
        return subprocess.Popen(
            [sys.executable, *words],
            cwd=PROJECT,
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            **options,
        )

    def run(self, *words: str) -> str:
        """Its output. Fails unless the process ends with 0."""
        with self.start(*words) as process:
            try:
                said, _ = process.communicate(timeout=200)
            finally:
                process.kill()
        assert process.returncode == 0, said
        return said

    def manage(self, *words: str) -> str:
        return self.run("manage.py", *words)


@contextmanager
def a_project(kind: str, folder: Path) -> Iterator[Project]:
    """The project on an empty database of this kind."""
    if kind == "sqlite":
        yield Project(folder, "")
        return
    name = f"django_{os.getpid()}_{next(_numbers)}"
    url = postgres.url()
    admin().execute(f"CREATE DATABASE {name}")
    try:
        yield Project(folder, url.rpartition("/")[0] + f"/{name}")
    finally:
        admin().execute(f"DROP DATABASE {name} WITH (FORCE)")
