"""The Django tasks that a process knows, and `Store`, the App behind them as the other modules see it."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any, Final, Protocol

from django.apps import apps
from django.utils.module_loading import autodiscover_modules

from treadle.app import App
from treadle.integrations.django.compat import Task
from treadle.tasks.task import AnyTask

OF_ONE_CALL: Final = frozenset({"id", "after", "when"})  # options that make sense for one call only
KEPT: Final = 1_000  # exceptions of runs whose end is not stored yet; more than a worker has slots


class Known:
    """A Django task that was registered.

    options       the options of Treadle that count for all its jobs
    task_options  the `options` of the task that was registered; tasks with other options were made by `.using`
    treadle       the Treadle task for it
    """

    def __init__(self, task: Any, options: dict[str, Any], treadle: AnyTask) -> None:
        self.task, self.options, self.treadle = task, options, treadle
        self.task_options = getattr(task, "options", None)


class Raised:
    """Keeps the exceptions of runs that ended their job, by the id of the job, until the end is stored."""

    def __init__(self) -> None:
        self._errors: dict[str, BaseException] = {}

    def note(self, id: str, error: BaseException) -> None:
        self._errors.pop(id, None)
        self._errors[id] = error
        while len(self._errors) > KEPT:
            del self._errors[next(iter(self._errors))]

    def take(self, id: str) -> BaseException | None:
        return self._errors.pop(id, None)


class Store(Protocol):
    """The App of one place, with its Django tasks by their path; `raised` holds the exceptions for `task_finished`."""

    tasks: dict[str, Known]
    raised: Raised

    @property
    def app(self) -> App: ...
    def learn(self, path: str) -> Known | None: ...
    def register(self, task: Any, constants: dict[str, Any]) -> Known: ...


def constants_of(task: Any) -> dict[str, Any]:
    """The options of a task that count for all its jobs."""
    options: dict[str, Any] = getattr(task, "options", {})
    return {name: value for name, value in options.items() if name not in OF_ONE_CALL}


def is_task(value: object) -> bool:
    """Whether it is a Django task. `isinstance` would read `__class__`, which may raise on lazy objects."""
    return issubclass(type(value), Task)


# --- the tasks of a project
#
# They are in the `tasks` module of each installed app, and in OPTIONS["modules"].
#
# A stored job may name a task that this process has not imported. Its module is imported only if it belongs to the
# project: a name in a row must not make a worker import anything else.


log = logging.getLogger("treadle")


def load(modules: Iterable[str]) -> None:
    """Import the modules with tasks. An error of one of them is raised: a worker without its tasks must not start."""
    autodiscover_modules("tasks")
    for name in modules:
        importlib.import_module(name)


def tasks_of_project(modules: Iterable[str]) -> Iterator[Any]:
    """The tasks in the modules that `load` imports, whatever backend they name."""
    import sys

    names = [f"{config.name}.tasks" for config in apps.get_app_configs()]
    for name in (*names, *modules):
        module = sys.modules.get(name)
        if module is not None:
            yield from (value for value in vars(module).values() if is_task(value))


def find_task(path: str, modules: Iterable[str]) -> Any | None:
    """The task of that path, such as "shop.tasks.send"; None if the project has none. An error of its module is
    logged."""
    name, _, attribute = path.rpartition(".")
    if not name or not _is_of_project(name, modules):
        return None
    try:
        module: ModuleType = importlib.import_module(name)
    except ModuleNotFoundError:
        return None
    except Exception:
        log.exception("the module of the task %s cannot be imported", path)
        return None
    task = getattr(module, attribute, None)
    return task if is_task(task) else None


def _is_of_project(module: str, modules: Iterable[str]) -> bool:
    allowed = [*(config.name for config in apps.get_app_configs()), *modules]
    return any(module == name or module.startswith(f"{name}.") for name in allowed)
