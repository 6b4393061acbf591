"""Each file, folder and dotted name in backticks exists: in the documentation, and in docstrings and comments."""

from __future__ import annotations

import fnmatch
import functools
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    "deploy",
    "src",
    "packages",
    "tests",
    "docs",
    "benchmarks",
    "tools",
    "examples",
    "requirements",
    "changes",
    ".ci",
    "ui/src",
)
FILE = re.compile(r"([\w.*-]+/)*[\w.*-]+\.(py|sql|lua|md|toml|txt|in)(:\w+)?")
FOLDER = re.compile(r"[\w.-]+(/[\w.-]+)*/")
NAME = re.compile(r"treadle(_testkit)?(\.\w+)+")

# a page about one folder: a file that it names without a folder is in this one
ABOUT = {
    "docs/internals/postgres.md": "src/treadle/storage/postgres/",
    "docs/internals/redis.md": "src/treadle/storage/redis/",
    "docs/internals/sqlite.md": "src/treadle/storage/sqlite/",
    "docs/internals/worker.md": "src/treadle/worker/",
    "docs/internals/decisions/state-machine.md": "src/treadle/storage/",
}

# words of that form that name no file and no object of ours
OTHERS = {
    "treadle_app.py": "a file that `treadle from celery` writes",
    "shop/treadle_app.py": "a file that `treadle from celery` writes",
    "types.py": "a module of Python",
    "secrets.py": "a module of Python",
    "treadle.db": "the default file of the jobs",
    "treadle.jobs": "a logger",
    "treadle.access": "a logger",
    "treadle.audit": "a logger, and a system task",
    ".boot/browser/": "a folder that `dev.py test` creates",
    "ui/": "the folder above `ui/src/`",
    "treadle.limit": "a system task",
    "treadle.schedule": "a system task",
    "treadle.view_job": "a permission in Django, as are the next five",
    "treadle.change_job": "",
    "treadle.delete_job": "",
    "treadle.view_payload": "",
    "treadle.view_schedule": "",
    "treadle.change_schedule": "",
    "treadle.E001": "a system check of Django",
    "treadle.queue": "a tag of events in Sentry, as is the next",
    "treadle.job": "",
    "treadle.task": "an attribute of OpenTelemetry, as are the next five",
    "treadle.attempt": "",
    "treadle.outcome": "",
    "treadle.waited": "",
    "treadle.lost": "",
    "treadle.state": "",
    "treadle.job.wait": "a metric of OpenTelemetry, as are the next two",
    "treadle.queue.jobs": "",
    "treadle.queue.oldest": "",
    "tokens.toml": "a file of the user",
    "path/to/file.py:app": "a file of the user",
    "path/to/file.py:attribute": "a file of the user",
    "quarantine/": "a folder of the user's blobs",
    "docs/reference/": "a folder that `dev.py docs` creates",
    "benchmarks/peers/NAME.in": "any file there",
    "benchmarks/adapters/NAME.py": "any file there",
}


@functools.cache
def paths() -> list[str]:
    """All files and folders; a folder ends with a slash."""
    found = [path for path in ROOT.glob("*") if path.is_file()]
    for folder in FOLDERS:
        found += [ROOT / folder, *(ROOT / folder).rglob("*")]
    return [
        path.relative_to(ROOT).as_posix() + "/" * path.is_dir() for path in found if "__pycache__" not in path.parts
    ]


@functools.cache
def quoted() -> list[tuple[str, int, str]]:
    """Page, line and word for each word in backticks. Other tests run fenced blocks; `changes/` is history."""
    return [
        (path, *found)
        for path in paths()
        if path.endswith((".md", ".py")) and not path.startswith(("docs/reference/", "changes/", "tests/docs/"))
        for found in words_of((ROOT / path).read_text())
    ]


def words_of(text: str) -> Iterator[tuple[int, str]]:
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        fenced ^= line.lstrip().startswith("```")
        if not fenced:
            yield from ((number, word) for word in re.findall(r"`([^`]+)`", line))


@functools.cache
def is_there(word: str, page: str) -> bool:
    """Whether a path ends with these words, in the page's folder if they name no folder."""
    within = ABOUT.get(page, "") if "/" not in word.rstrip("/") else ""
    return any(
        f"/{path}".endswith(f"/{word}") or ("*" in word and fnmatch.fnmatch(f"/{path}", f"*/{word}"))
        for path in paths()
        if path.startswith(within)
    )


@functools.cache
def is_importable(name: str) -> bool:
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def wrong(word: str, page: str) -> str | None:
    """Why there is nothing of this name; None if there is, or if the word names something else."""
    file, _, name = word.partition(":")
    if word in OTHERS:
        return None
    if FOLDER.fullmatch(word) or FILE.fullmatch(word):
        if not is_there(file, page):
            return f"there is no {file}"
        defining = re.compile(rf"^\s*(?:class |def |async def )?{name}\b", re.M)
        if name and not any(defining.search((ROOT / path).read_text()) for path in paths() if path.endswith(file)):
            return f"{file} has no {name}"
    elif NAME.fullmatch(bare := word.partition("(")[0]) and not is_importable(bare):
        return f"there is no {bare}"
    return None


def test_names_in_texts_exist() -> None:
    faults = [f"{page}:{line}: {fault}" for page, line, word in quoted() if (fault := wrong(word, page))]
    assert not faults, "\n".join([*faults, "name what is there now, or say in OTHERS of this test what the word means"])


def test_each_exception_is_in_use() -> None:
    assert {*OTHERS} <= {word for _, _, word in quoted()}


def test_the_map_of_the_code_has_every_package() -> None:
    """And every module that is in none."""
    home = ROOT / "src/treadle"
    tops = {path.name + "/" * path.is_dir() for path in home.iterdir() if path.suffix == ".py" or path.is_dir()}
    shown = {word for page, _, word in quoted() if page == "docs/internals/index.md"}
    assert tops - {"__init__.py", "__main__.py", "__pycache__/"} <= shown
