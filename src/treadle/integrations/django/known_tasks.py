"""The Django tasks that a process knows, and `Store`, the App behind them as the other modules see it."""

from __future__ import annotations

from typing import Any, Final, Protocol

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
