"""The OPTIONS of a Treadle backend in TASKS, read and checked."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Final, Literal, cast

from msgspec import Struct

from treadle.integrations.django.compat import InvalidTaskBackend

Commit = Literal["same", "after", "now", "outbox"]
COMMITS: Final = ("same", "after", "now", "outbox")


class BackendOptions(Struct, frozen=True):
    """Where the jobs of a backend are stored, and when.

    database  the alias in DATABASES whose database has the jobs, unless there is a `url`
    schema    the schema of Treadle's tables (PostgreSQL)
    url       another storage, such as "redis://host:6379/0"; None: the database
    commit    "same": in the open transaction of `database`; "after": when it has committed; "now": at once;
              "outbox": in the open transaction of `database`, and from there to the `url`
    migrate   whether `manage.py migrate` also makes and upgrades Treadle's tables
    modules   more modules with tasks, in addition to the `tasks` module of each installed app
    """

    database: str = "default"
    schema: str = "treadle"
    url: str | None = None
    commit: Commit = "same"
    migrate: bool = True
    modules: tuple[str, ...] = ()

    @property
    def place(self) -> tuple[str, ...]:
        """Backends with the same place share one App."""
        if self.url is None:
            return "database", self.database, self.schema
        return ("outbox", self.url, self.database) if self.commit == "outbox" else ("url", self.url)


def read(alias: str, given: Mapping[str, Any]) -> BackendOptions:
    """Raises InvalidTaskBackend for an unknown option or a value of the wrong kind."""
    known = BackendOptions.__struct_fields__
    if not isinstance(given, Mapping):
        raise InvalidTaskBackend(f"TASKS[{alias!r}]['OPTIONS']: expected a dict, found {given!r:.80}.")
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(str(name), known, 1)
            like = f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(known)}"
            raise _wrong(alias, name, f"unknown option; {like}")
    for name in ("database", "schema"):
        if not isinstance(given.get(name, "default"), str) or not given.get(name, "default"):
            raise _wrong(alias, name, f"expected a text, found {given[name]!r}")
    url = given.get("url")
    if url is not None and not (isinstance(url, str) and url):
        raise _wrong(alias, "url", f"expected a storage URL or None, found {url!r}")
    commit = given.get("commit")
    if commit is None:
        commit = "same" if url is None else "after"
    if commit not in COMMITS:
        raise _wrong(alias, "commit", f"expected one of {', '.join(COMMITS)}, found {commit!r}")
    migrate = given.get("migrate", True)
    if not isinstance(migrate, bool):
        raise _wrong(alias, "migrate", f"expected True or False, found {migrate!r}")
    modules = given.get("modules", ())
    if not isinstance(modules, list | tuple | set | frozenset) or not all(isinstance(each, str) for each in modules):
        raise _wrong(alias, "modules", f"expected a list of module names, found {modules!r}")
    return BackendOptions(
        database=given.get("database", "default"),
        schema=given.get("schema", "treadle"),
        url=url,
        commit=cast("Commit", commit),
        migrate=migrate,
        modules=tuple(modules),
    )


def _wrong(alias: str, option: object, problem: str) -> Exception:
    end = "" if problem.endswith("?") else "."
    found: Exception = InvalidTaskBackend(f"TASKS[{alias!r}]['OPTIONS'][{option!r}]: {problem}{end}")
    return found
