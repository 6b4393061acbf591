"""Finds the Django tasks of a project: in the `tasks` module of each installed app, and in OPTIONS["modules"].

A stored job may name a task that this process has not imported. Its module is imported only if it belongs to the
project: a name in a row must not make a worker import anything else.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

from django.apps import apps
from django.utils.module_loading import autodiscover_modules

from treadle.integrations.django.known_tasks import is_task

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
