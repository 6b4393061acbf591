"""`treadle init`: writes a small project that runs. The files come from `templates/`, with some words replaced."""

from __future__ import annotations

import importlib.util
import json
import keyword
import re
import shlex
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

import click

from treadle.cli.output import FAILED, USAGE, Stop, data, note, plural

TEMPLATES: Final = ("plain", "fastapi", "django")
NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
TAKEN: Final = frozenset({"test", "tests", "treadle", "package"})
NEXT: Final = {  # after `pip install`
    "plain": ("pytest", "treadle worker {package}.tasks:app"),
    "fastapi": ("pytest", "uvicorn {package}.web:web", "treadle worker {package}.tasks:app"),
    "django": ("python manage.py test", "python manage.py migrate", "python manage.py treadle worker"),
}


@click.command()
@click.argument("name", required=False)
@click.option(
    "--template",
    type=click.Choice(TEMPLATES),
    default="plain",
    show_default=True,
    help="Kind of project: tasks alone, or with a web framework.",
)
def init(name: str | None, template: str) -> int:
    """Make a project in the folder NAME, or in this one: an app, tasks, tests, and a README with the commands.

    NAME is also that of its package, with _ for -. No file is overwritten: if one exists, nothing is written. The
    names of the files go to stdout.
    """
    folder = Path(name) if name is not None else Path()
    project = name if name is not None else Path.cwd().name
    package = _package(project)
    first = _install()
    install = f"    {_elsewhere(first)}\n" if first else ""
    replacements = {"{{package}}": package, "{{project}}": project, "{{install}}": install}
    texts = {
        folder / place.replace("PACKAGE", package): _filled(text, replacements)
        for place, text in _texts(files("treadle.cli") / "templates" / template)
    }
    for file in texts:
        if file.exists() or file.is_symlink():
            raise Stop(USAGE, f"{file} exists, so nothing was written; choose another name, or move the file away")
    for file, text in texts.items():
        _write(file, text)
        data(str(file))
    place = f"cd {folder}\n  " if name is not None else ""
    own = [step.format(package=package) for step in NEXT[template]]
    steps = "\n  ".join([*([first] if first else []), "pip install -e '.[dev]'", *own])
    note(f"treadle: made {plural(len(texts), 'file')}. Next:\n  {place}{steps}")
    return 0


def _filled(text: str, words: dict[str, str]) -> str:
    for word, value in words.items():
        text = text.replace(word, value)
    return text


def _install() -> str | None:
    """The command that installs this Treadle in the environment of the project, if it came from a folder, a file or a
    repository: an index may not have it. None: it came from an index."""
    try:
        origin = json.loads(distribution("treadle").read_text("direct_url.json") or "{}")
        url, commit = origin.get("url", ""), origin.get("vcs_info", {})
        parts = urlsplit(url)
    except (PackageNotFoundError, ValueError, AttributeError):
        return None
    if commit:
        url = f"treadle @ {commit['vcs']}+{url}@{commit['commit_id']}"
    elif parts.scheme == "file":
        url = url2pathname(parts.path)
        if not Path(url).exists():
            return None
    return f"pip install {shlex.quote(url)}" if url else None


def _elsewhere(command: str) -> str:
    """The command for a reader on another machine, who has no such folder."""
    return command if "@" in command else "pip install PATH   # of a checkout or a wheel of Treadle"


def _package(project: str) -> str:
    """The name of the package of a project. Raises Stop for a name that Python or another module has."""
    where = f"the name of the project, {project!r}"
    if not NAME.fullmatch(project):
        raise Stop(USAGE, f"{where}: expected a letter, then letters, digits, - and _, at most 40 in all; give NAME")
    package = project.lower().replace("-", "_")
    if keyword.iskeyword(package) or package in sys.stdlib_module_names or package in TAKEN:
        raise Stop(USAGE, f"{where}: Python, Treadle or the tests use {package!r} already; choose another name")
    if _installed(package):
        raise Stop(USAGE, f"{where}: a module {package!r} is installed, which the new one would hide; choose another")
    return package


def _installed(package: str) -> bool:
    """Whether a module of this name can be imported, other than from here."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None and Path.cwd() not in Path(spec.origin).parents


def _texts(folder: Traversable, below: str = "") -> Iterator[tuple[str, str]]:
    """The path and the text of each file of a template, sorted. Their names end with .txt, so that no tool reads them
    as code."""
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _texts(entry, f"{below}{entry.name}/")
        elif entry.name.endswith(".txt"):
            name = entry.name.removesuffix(".txt")
            yield below + (f".{name}" if name == "gitignore" else name), entry.read_text(encoding="utf-8")


def _write(file: Path, text: str) -> None:
    """Write a new file. Raises Stop if it cannot be created."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8", newline="\n") as out:
            out.write(text)
    except OSError as error:
        raise Stop(FAILED, f"cannot write {file}: {error.strerror or error}") from None
