"""The function that a worker calls for a Django task: it prepares the connections, sends `task_started`, and returns
the result as plain JSON."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from treadle.execution.context import current
from treadle.integrations.django import results
from treadle.integrations.django.compat import TaskContext, plain_json, task_started
from treadle.integrations.django.connections import OwnThreads, forget_queries
from treadle.integrations.django.known_tasks import Store

threads = OwnThreads()  # the async tasks of this process share them


def bridged(task: Any, store: Store) -> Callable[..., Any]:
    """A function of JSON values that runs the task. It has no annotations: Django accepts any JSON value, and checks
    nothing against the annotations of a task."""
    function, takes_context = task.func, task.takes_context

    def begun() -> Any:
        return results.result_of(current().record, store, task.backend, running=True)

    def first(result: Any) -> tuple[Any, ...]:
        return (TaskContext(task_result=result),) if takes_context else ()

    if inspect.iscoroutinefunction(function):

        async def acall(*args: Any, **kwargs: Any) -> Any:
            async with threads.one():
                result = begun()
                await task_started.asend_robust(sender=sender_of(task), task_result=result)
                return plain_json(await function(*first(result), *args, **kwargs))

        return acall

    def call(*args: Any, **kwargs: Any) -> Any:
        forget_queries()
        result = begun()
        task_started.send_robust(sender=sender_of(task), task_result=result)
        return plain_json(function(*first(result), *args, **kwargs))

    return call


def sender_of(task: Any) -> type:
    """The sender of a task's signals: the class of its backend."""
    return type(task.get_backend())
