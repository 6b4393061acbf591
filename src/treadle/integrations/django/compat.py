"""`django.tasks` of Django 6, or the backport `django_tasks` on Django 5.2: the same names from either."""

from __future__ import annotations

import json
from typing import Any, Final

import django

if django.VERSION >= (6, 0):
    from django.tasks import task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django.tasks.exceptions import InvalidTask, InvalidTaskBackend, TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json

    LOGGER = "django.tasks"
else:
    try:
        from django_tasks import task_backends
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"Django {django.get_version()} has no tasks of its own: pip install 'django-tasks>=0.12', or use Django 6",
            name=error.name,
        ) from None
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django_tasks.exceptions import InvalidTaskBackendError as InvalidTaskBackend
    from django_tasks.exceptions import InvalidTaskError as InvalidTask
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started
    from django_tasks.utils import normalize_json

    LOGGER = "django_tasks"

PLAIN: Final = frozenset({type(None), str, int, float, bool})

__all__ = [
    "LOGGER",
    "BaseTaskBackend",
    "InvalidTask",
    "InvalidTaskBackend",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "plain_json",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]


def plain_json(value: Any) -> Any:
    """The value as JSON has it: lists for tuples, text for bytes and for text enums. Raises TypeError or ValueError for
    anything else."""
    normalized = normalize_json(value)
    return normalized if type(normalized) in PLAIN else json.loads(json.dumps(normalized))
