"""`TreadleTask`, a Django task that also has options of Treadle: `@task(retry=Retry(attempts=5), timeout=30)`."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, Final

from treadle.core.errors import BadOption, TooLarge
from treadle.integrations.django.compat import InvalidTask, Task
from treadle.tasks.options import Options, check_names, merge

# Options of Treadle that Django has names for, or that a transaction rules out.
OTHERWISE: Final = {
    "queue": "use queue_name=",
    "run_at": "use run_after=",
    "delay": "use run_after=",
    "within": "the backend's OPTIONS['commit'] decides that",
    "inline": "a job cannot run before its transaction is committed",
    "pass_result": "Django passes the arguments of the call, and nothing else",
}


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class TreadleTask(Task):
    """A task of Django with `options`: retry, timeout, key, limits, cost, lane, labels, headers, keep, keep_failed,
    deadline, expires, lease, max_lost, aging, after, when, wait_timeout, id.

    Django 6.1 and the backport accept them in the decorator, `.using(...)` accepts them everywhere. Options of the
    decorator apply to every job, also to stored ones. Options of `.using` apply to the jobs that it enqueues.
    """

    options: dict[str, Any] = field(default_factory=dict, hash=False)

    def __init__(self, *, options: dict[str, Any] | None = None, **more: Any) -> None:
        for own in fields(Task):
            value = more.pop(own.name, own.default)
            if value is MISSING:
                raise TypeError(f"{type(self).__name__}: {own.name}= is missing")
            object.__setattr__(self, own.name, value)
        object.__setattr__(self, "options", _merged(options or {}, more) if more else options or {})
        self.__post_init__()

    def using(self, **changes: Any) -> TreadleTask:
        """A task with other defaults: those of Django (priority, queue_name, run_after, backend), and options. Raises
        InvalidTask."""
        own = {name: changes.pop(name) for name in DJANGO & changes.keys()}
        replaced = {name: value for name, value in own.items() if value is not None}
        if changes:
            replaced["options"] = _merged(self.options, changes)
        return replace(self, **replaced)


DJANGO: Final = frozenset({"priority", "queue_name", "run_after", "backend"})


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    for name in above:
        if name in OTHERWISE:
            raise InvalidTask(f"{name}= is no option of a Django task: {OTHERWISE[name]}.")
    try:
        check_names(above, (*DJANGO, "takes_context"))
        return dict(merge(Options(**below), Options(**above)))  # type: ignore[typeddict-item]
    except (BadOption, TooLarge) as error:
        raise InvalidTask(str(error)) from error
