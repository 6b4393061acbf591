"""The OPTIONS of a Treadle backend in TASKS, read and checked."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, get_args

from msgspec import Struct

from treadle.core.errors import BadOption
from treadle.integrations.django.compat import InvalidTaskBackend
from treadle.serialization import Keys
from treadle.storage import Wrapping

Commit = Literal["same", "after", "now", "outbox"]
COMMITS: Final = get_args(Commit)


class BackendOptions(Struct, frozen=True):
    """Where the jobs of a backend are stored, and when.

    database  the alias in DATABASES whose database has the jobs, unless there is a `url`
    schema    the schema of Treadle's tables (PostgreSQL)
    url       another storage, such as "redis://host:6379/0"; None: the database
    commit    "same": in the open transaction of `database`; "after": when it has committed; "now": at once;
              "outbox": in the open transaction of `database`, and from there to the `url`
    migrate   whether `manage.py migrate` also makes and upgrades Treadle's tables
    modules   more modules with tasks, in addition to the `tasks` module of each installed app
    blobs     where large arguments and results are stored: a folder, "s3://bucket/prefix", or an object; None: in rows
    offload   the bytes of a text above which it is stored there; None: 64 KiB
    keys      the keys that encrypt texts, the newest first; None: texts are stored as they are
    redact    names of values that people must not see
    """

    database: str = "default"
    schema: str = "treadle"
    url: str | None = None
    commit: Commit = "same"
    migrate: bool = True
    modules: tuple[str, ...] = ()
    blobs: Any = None
    offload: int | None = None
    keys: Keys | None = None
    redact: tuple[str, ...] = ()

    @property
    def texts(self) -> dict[str, Any]:
        """The arguments of an App that say how texts are stored and shown."""
        return {"blobs": self.blobs, "offload": self.offload, "keys": self.keys, "redact": self.redact}

    def check_texts(self) -> None:
        """Check `blobs`, `offload` and `keys`. Raises BadOption and BadUrl."""
        if (self.blobs, self.offload, self.keys) != (None, None, None):
            Wrapping.of(self.blobs, self.offload, self.keys)

    @property
    def texts_summary(self) -> tuple[object, ...]:
        """The part that backends with the same place must have in common: they share one App."""
        return self.blobs, self.offload, () if self.keys is None else self.keys.names, self.redact

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
    for name, fits, expected in _EXPECTED:
        if name in given and not fits(given[name]):
            raise _wrong(alias, name, f"expected {expected}, found {given[name]!r}")
    commit = given.get("commit") or ("same" if given.get("url") is None else "after")
    names = {name: tuple(given[name]) for name in ("modules", "redact") if name in given}
    return BackendOptions(**{**given, **names, "commit": commit, "keys": _keys(alias, given.get("keys"))})


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _are_names(value: object) -> bool:
    return isinstance(value, list | tuple | set | frozenset) and all(isinstance(name, str) for name in value)


_EXPECTED: Final[Sequence[tuple[str, Callable[[Any], bool], str]]] = (
    ("database", _is_text, "a text"),
    ("schema", _is_text, "a text"),
    ("url", lambda value: value is None or _is_text(value), "a storage URL or None"),
    ("commit", lambda value: value in (None, *COMMITS), f"one of {', '.join(COMMITS)}"),
    ("migrate", lambda value: isinstance(value, bool), "True or False"),
    ("offload", lambda value: value is None or type(value) is int, "a number of bytes or None"),
    ("modules", _are_names, "a list of module names"),
    ("redact", _are_names, "a list of names of arguments and fields"),
)


def _keys(alias: str, given: object) -> Keys | None:
    """Keys(...), or the texts of keys: one, or a list. No message shows a key."""
    if given is None or isinstance(given, Keys):
        return given
    texts = given.replace(",", " ").split() if isinstance(given, str) else given
    if not isinstance(texts, list | tuple) or not all(isinstance(key, str) for key in texts):
        raise _wrong(alias, "keys", f"expected Keys(...) or a list of keys, found a {type(given).__name__}")
    try:
        return Keys(*texts)
    except BadOption as error:
        raise InvalidTaskBackend(f"TASKS[{alias!r}]['OPTIONS']: {error}.") from None


def _wrong(alias: str, option: object, problem: str) -> Exception:
    end = "" if problem.endswith("?") else "."
    error: Exception = InvalidTaskBackend(f"TASKS[{alias!r}]['OPTIONS'][{option!r}]: {problem}{end}")
    return error
