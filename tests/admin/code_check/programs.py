"""Programs in two versions: the old one fills a storage, the new one is checked against it."""

from __future__ import annotations

import asyncio
import importlib
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from treadle import App
from treadle.testing import drain

HEAD = """
from __future__ import annotations
import asyncio, dataclasses, datetime, enum, typing
import msgspec, pydantic
from treadle import Limit, Retry, chain, current, depends, flow
from {package} import app
"""


@dataclass(frozen=True)
class Case:
    """One change of a program.

    what    the change, as a name of the test
    old     source of the old version: it may use `app`
    new     source of the new version
    fill    body of an async function of the old version, run once
    finds   begins of "level kind subject: what", each of which the check must find; none: it must find nothing
    runs    whether the jobs run, as far as they can, before the others are stored
    """

    what: str
    old: str
    new: str
    fill: str
    finds: tuple[str, ...] = ()
    runs: bool = False

    @property
    def module(self) -> str:
        return "c_" + "".join(letter if letter.isalnum() else "_" for letter in self.what.lower())


def write(folder: Path, cases: list[Case]) -> None:
    """Write the packages `before` and `after`, with a module for each case."""
    for package in ("before", "after"):
        (folder / package).mkdir()
        (folder / package / "__init__.py").write_text("from treadle import App\napp = App()\n")
        for case in cases:
            body = textwrap.dedent(case.old if package == "before" else case.new)
            text = HEAD.format(package=package) + body
            if package == "before":
                text += f"\nasync def fill():\n{textwrap.indent(textwrap.dedent(case.fill).strip(), '    ')}\n"
            (folder / package / f"{case.module}.py").write_text(text)


def load(package: str, cases: list[Case]) -> tuple[App, dict[str, ModuleType]]:
    """Import a version of the program; its folder is on sys.path."""
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]
    root = importlib.import_module(package)
    return root.app, {case.module: importlib.import_module(f"{package}.{case.module}") for case in cases}


async def fill(url: str, cases: list[Case]) -> None:
    """Store the jobs of the old version, half run where the case says so."""
    from treadle.app.storage_choice import StorageChoice

    app, modules = load("before", cases)
    app._core.use(StorageChoice(url=url))
    async with app:
        for case in cases:
            if case.runs:
                await modules[case.module].fill()
        await drain(app)
        for case in cases:
            if not case.runs:
                await modules[case.module].fill()
        await app._core.prepare()


def filled(folder: Path, cases: list[Case]) -> str:
    """The URL of a storage with the jobs of all these cases."""
    write(folder, cases)
    sys.path.insert(0, str(folder))
    url = f"sqlite:///{folder}/jobs.db"
    try:
        asyncio.run(fill(url, cases))
    finally:
        sys.path.remove(str(folder))
    return url


def words(finding: dict[str, Any]) -> str:
    return f"{finding['level']} {finding['kind']} {finding['subject']}: {finding['what']}"
