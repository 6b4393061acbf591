"""Periodic tasks from settings: TREADLE_SCHEDULES, declared by every worker that starts.

TREADLE_SCHEDULES = {"nightly": {"task": "shop.tasks.report", "cron": "0 3 * * *", "tz": "Europe/Paris"}}
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any, Final

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from treadle.core.errors import BadArgument, BadOption, TooLarge
from treadle.integrations.django.compat import InvalidTask
from treadle.integrations.django.database_app import first_alias, store_of, treadle_aliases
from treadle.integrations.django.known_tasks import Store, constants_of, is_task
from treadle.policy import cron as crons
from treadle.scheduling import ticker
from treadle.tasks.task import Task

NAME: Final = "TREADLE_SCHEDULES"
KEYS: Final = ("task", "cron", "every", "tz", "args", "kwargs", "catch_up", "overlap", "backend")


def read() -> dict[str, dict[str, Any]]:
    """The setting. Raises ImproperlyConfigured for an unknown key, a missing task, an invalid name or timing, and for
    both or none of cron and every."""
    setting = _setting()
    for name, entry in setting.items():
        _check(name, entry)
    return {name: dict(entry) for name, entry in setting.items()}


def problems() -> Iterator[str]:
    """The errors of each entry, also of its task and its arguments. Imports the tasks, as a worker does."""
    try:
        setting = _setting()
    except ImproperlyConfigured as error:
        yield str(error)
        return
    for name, entry in setting.items():
        try:
            _check(name, entry)
            store = store_of(entry.get("backend") or first_alias())
            _call(store, name, entry)
        except (ImproperlyConfigured, InvalidTask) as error:
            yield str(error)


def _setting() -> Mapping[str, Any]:
    setting = getattr(settings, NAME, None) or {}
    if not isinstance(setting, Mapping):
        raise ImproperlyConfigured(f"{NAME}: expected a dict of schedules by name, found {setting!r:.80}")
    return setting


def _check(name: str, entry: Any) -> None:
    if not isinstance(entry, Mapping):
        raise _wrong(name, f"expected a dict, found {entry!r:.80}")
    for key in entry:
        if key not in KEYS:
            close = difflib.get_close_matches(str(key), KEYS, 1)
            like = f"; did you mean {close[0]!r}?" if close else f"; expected one of {', '.join(KEYS)}"
            raise _wrong(name, f"unknown key {key!r}{like}")
    if not isinstance(entry.get("task"), str) or "." not in entry["task"]:
        raise _wrong(name, '"task": expected the path of a task, such as "shop.tasks.report"')
    if ("cron" in entry) == ("every" in entry):
        raise _wrong(name, 'give exactly one of "cron" and "every"')
    _check_call(name, entry)
    try:
        ticker.check(name, entry.get("catch_up", "one"), entry.get("overlap", "allow"))
        crons.cron(entry["cron"], _zone(entry)) if "cron" in entry else crons.every(entry["every"])
    except BadOption as error:
        raise _wrong(name, str(error)) from error


def _check_call(name: str, entry: Mapping[str, Any]) -> None:
    """Raises ImproperlyConfigured for arguments that no task can get, and for a backend that is none of Treadle's."""
    args, kwargs = entry.get("args", ()), entry.get("kwargs", {})
    if not isinstance(args, list | tuple):
        raise _wrong(name, f'"args": expected a list, found {args!r:.80}')
    if not isinstance(kwargs, Mapping) or not all(isinstance(key, str) for key in kwargs):
        raise _wrong(name, f'"kwargs": expected a dict with names as keys, found {kwargs!r:.80}')
    known = list(treadle_aliases())
    if "backend" in entry and entry["backend"] not in known:
        names = ", ".join(known) or "none"
        raise _wrong(name, f'"backend": expected a Treadle backend of TASKS ({names}), found {entry["backend"]!r:.80}')


def declare(store: Store, aliases: list[str]) -> list[str]:
    """Declare the schedules whose backend is one of these aliases -> their names. One that names no backend belongs to
    the first Treadle backend. Raises ImproperlyConfigured."""
    declared = []
    for name, entry in read().items():
        if entry.get("backend", first_alias()) not in aliases:
            continue
        try:
            _declare(store, name, entry)
        except BadOption as error:
            raise _wrong(name, str(error)) from error
        declared.append(name)
    return declared


def _declare(store: Store, name: str, entry: dict[str, Any]) -> None:
    rest = {key: entry[key] for key in ("args", "kwargs", "catch_up", "overlap") if key in entry}
    task = _call(store, name, entry)
    if "cron" in entry:
        store.app.cron(entry["cron"], tz=_zone(entry), name=name, **rest)(task)
    else:
        store.app.every(entry["every"], name=name, **rest)(task)


def _call(store: Store, name: str, entry: Mapping[str, Any]) -> Any:
    """The Treadle task of the entry, which takes its arguments."""
    task = _task(store, name, entry["task"])
    args, kwargs = entry.get("args", ()), entry.get("kwargs", {})
    try:
        if known := store.tasks.get(task.name):  # Django checks no arguments
            context = (None,) if known.task.takes_context else ()
            inspect.signature(known.task.func).bind(*context, *args, **kwargs)
        task._core.signature.encode_call(tuple(args), dict(kwargs))
    except (BadOption, BadArgument, TooLarge) as error:
        raise _wrong(name, str(error)) from error
    except TypeError as error:
        raise _wrong(name, f"{entry['task']}: {error}") from error
    return task


def _zone(entry: Mapping[str, Any]) -> str:
    return str(entry.get("tz") or settings.TIME_ZONE)


def _task(store: Store, name: str, path: str) -> Any:
    """The Treadle task of that path: of a Django task, or declared with `@app.task`."""
    try:
        task = import_string(path)
    except ImportError as error:
        raise _wrong(name, f'"task": {path!r} cannot be imported ({error})') from error
    if isinstance(task, Task):
        return task
    if not is_task(task):
        raise _wrong(name, f'"task": {path!r} is {type(task).__name__}, not a task')
    return store.register(task, constants_of(task)).treadle


def _wrong(name: str, problem: str) -> ImproperlyConfigured:
    return ImproperlyConfigured(f"{NAME}[{name!r}]: {problem}")
