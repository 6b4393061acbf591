"""Finds the tasks of a package, and turns the options of their decorators into Treadle's.

Treadle's defaults differ from Celery's in two ways, which every decorator states: `App(retry=Retry(attempts=1))`
retries nothing by itself, and `max_lost=1` runs no job again whose worker died.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import libcst as cst

from treadle.contrib.celery.bodies import bound_body
from treadle.contrib.celery.model import Module, TaskDef, below
from treadle.contrib.celery.package import Package
from treadle.contrib.celery.retries import retry_options
from treadle.contrib.celery.settings import NotLiteral, Settings, literal

SHARED: Final = {"celery.shared_task", "celery.app.shared_task"}
RATE: Final = re.compile(r"(\d+)(?:/([smh]))?")
PER: Final = {None: 1, "s": 1, "m": 60, "h": 3600}
RETRYING: Final = {
    "autoretry_for",
    "max_retries",
    "default_retry_delay",
    "retry_backoff",
    "retry_backoff_max",
    "retry_jitter",
    "retry_kwargs",
}
WITHOUT_EFFECT: Final = {"track_started", "send_events", "store_errors_even_if_ignored", "trail"}
SECTIONS: Final = {
    "soft_time_limit": ("a function cannot be interrupted by an exception in Treadle", "time-limits"),
    "base": ("a task class has no counterpart: use middleware, on_error= or a lifespan", "task-classes"),
    "dont_autoretry_for": ("write on_error= by hand", "retries"),
    "throws": ("has no counterpart; errors are logged once for each attempt", "retries"),
    "typing": ("arguments are always checked", "arguments-and-results"),
    "serializer": ("arguments and results are JSON", "arguments-and-results"),
}


def tasks(package: Package, settings: Settings) -> dict[str, TaskDef]:
    """Every Celery task of the package by its full name; those with `problems` cannot be moved."""
    by_name: dict[str, TaskDef] = {}
    for module in package.modules.values():
        for node in (node for node in below(module.tree) if isinstance(node, cst.FunctionDef)):
            for decorator in node.decorators:
                called = decorator.decorator
                name = package.resolve(module.canonical(called.func if isinstance(called, cst.Call) else called))
                if name in SHARED or (settings.app is not None and name == f"{settings.app}.task"):
                    task = _task(settings, module, node, decorator)
                    by_name[task.full] = task
    return by_name


def _task(settings: Settings, module: Module, node: cst.FunctionDef, decorator: cst.Decorator) -> TaskDef:
    full = f"{module.name}.{node.name.value}".lstrip(".")
    task = TaskDef(full, full, module, node, decorator)
    if not isinstance(module.parent(node), cst.Module):
        task.full = task.name = f"{full}@{module.line(node)}"
        task.problem(decorator, "is not at the top level of its module", "tasks")
        return task
    if module.is_package:
        task.problem(decorator, "is in an __init__.py, which app.autodiscover() does not import by itself", "tasks")
    if decorator is not node.decorators[0]:
        task.problem(decorator, "has a decorator above it, which gets the task as a value", "calls")
    if node.asynchronous is not None:
        task.problem(decorator, "is an async function, which Celery does not run", "tasks")
    options = dict(_options(task, decorator.decorator))
    for name, value in options.items():
        _option(task, settings, name, value)
    _function(task)
    _defaults(task, settings, options)
    asks = bound_body(task) if task.bound is not None else False
    retry_options(task, {name: value for name, value in options.items() if name in RETRYING}, asks)
    return task


def _function(task: TaskDef) -> None:
    """Note what differs for every function: where it runs, and how its arguments are checked."""
    reason = 'ran alone in its process; it now runs in a thread next to others, or with kind="process" in a process'
    task.note(task.decorator, reason, "tasks")
    params = task.function.params
    parameters = [*params.posonly_params, *params.params, *params.kwonly_params]
    parameters += [param for param in (params.star_arg, params.star_kwarg) if isinstance(param, cst.Param)]
    checked = [
        param.name.value for param in parameters if param.annotation is not None and not _is_any(param.annotation)
    ]
    if checked:
        reason = (
            f"the annotations of {', '.join(checked)} are checked when a job is made: other types raise BadArgument"
        )
        task.note(task.function.params, reason, "arguments-and-results")


def _is_any(annotation: cst.Annotation) -> bool:
    """Whether it admits every value."""
    node = annotation.annotation
    name = node.attr if isinstance(node, cst.Attribute) else node
    return isinstance(name, cst.Name) and name.value in ("Any", "object")


def _options(task: TaskDef, decorator: cst.BaseExpression) -> Iterator[tuple[str, cst.BaseExpression]]:
    for arg in decorator.args if isinstance(decorator, cst.Call) else ():
        if arg.keyword is None:
            task.problem(arg, "options that are not keywords cannot be read", "tasks")
        else:
            yield arg.keyword.value, arg.value


def _option(task: TaskDef, settings: Settings, name: str, value: cst.BaseExpression) -> None:
    """Turn one option into Treadle's, or note why that is not possible."""
    if name in RETRYING or name in ("acks_late", "reject_on_worker_lost"):
        return  # together, later
    if name in WITHOUT_EFFECT:
        task.note(value, f"{name} is left out: Treadle always does so, or has no such switch", "tasks")
        return
    try:
        option = literal(value, task.module)
    except NotLiteral:
        task.problem(value, f"{name} is not a literal", "tasks")
        return
    known = KNOWN.get(name)
    if known is None or not known(task, settings, value, option):
        reason, section = SECTIONS.get(name, (f"{name}={option!r:.40} has no counterpart that is certain", "tasks"))
        task.problem(value, reason, section)


def _name(task: TaskDef, settings: Settings, node: cst.CSTNode, value: Any) -> bool:
    task.name, task.options["name"] = value, task.module.text(node)
    return isinstance(value, str)


def _queue(task: TaskDef, settings: Settings, node: cst.CSTNode, value: Any) -> bool:
    task.options["queue"] = task.module.text(node)
    return isinstance(value, str)


def _bind(task: TaskDef, settings: Settings, node: cst.CSTNode, value: Any) -> bool:
    params = task.function.params.params
    if value is True and params and not task.function.params.posonly_params:
        task.bound = params[0].name.value
    return value is False or task.bound is not None


def _priority(task: TaskDef, settings: Settings, node: cst.CSTNode, value: Any) -> bool:
    turned = priority(settings, value)
    if turned is not None:
        task.options["priority"] = str(turned)
    return turned is not None


def priority(settings: Settings, value: Any) -> int | None:
    """The priority for Treadle, where a higher number comes first. None if the broker is not known: brokers differ in
    the direction."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    if settings.broker in ("redis", "rediss", "valkey", "valkeys"):
        return -value
    return value if settings.broker in ("amqp", "amqps", "pyamqp", "librabbitmq") else None


def _rate(task: TaskDef, settings: Settings, node: cst.CSTNode, value: Any) -> bool:
    match = RATE.fullmatch(str(value)) if isinstance(value, str | int) and not isinstance(value, bool) else None
    if match is None or int(match[1]) == 0:
        return False
    limit = f"rate:{task.full}"
    task.options["limits"] = f'["{limit}"]'
    task.imports.add("Limit")
    rule = f'Limit("{limit}", rate={match[1]}, per={PER[match[2]]}, how="bucket", burst=1)'
    task.before.append(f"{{app}}.limits.declare({{Limit}}{rule.removeprefix('Limit')})")
    task.note(node, "held for each worker before; it now holds for all workers together", "rate-limits")
    return True


def _time_limit(task: TaskDef, settings: Settings, node: cst.CSTNode, value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        return value is None
    task.options["timeout"] = task.module.text(node)
    reason = 'a thread is not killed at its timeout; with kind="process" it is'
    task.note(node, reason, "time-limits")
    return True


def _ignore_result(task: TaskDef, settings: Settings, node: cst.CSTNode, value: Any) -> bool:
    if value:
        task.note(node, "is left out: the result is stored for keep= seconds, and must be JSON", "results")
    return isinstance(value, bool)


def _expires(task: TaskDef, settings: Settings, node: cst.CSTNode, value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        return False
    task.options["expires"] = task.module.text(node)
    task.note(node, "was the time to start by; it now is the time to have ended by", "options-of-a-call")
    return True


def _json(task: TaskDef, settings: Settings, node: cst.CSTNode, value: Any) -> bool:
    return bool(value == "json")


KNOWN: Final[dict[str, Callable[[TaskDef, Settings, cst.CSTNode, Any], bool]]] = {
    "name": _name,
    "queue": _queue,
    "bind": _bind,
    "priority": _priority,
    "rate_limit": _rate,
    "time_limit": _time_limit,
    "ignore_result": _ignore_result,
    "expires": _expires,
    "serializer": _json,
}


def _defaults(task: TaskDef, settings: Settings, given: dict[str, cst.BaseExpression]) -> None:
    """Apply the app's settings where the decorator sets nothing."""
    if "queue" not in given:
        try:
            queue = settings.queue_of(task.name)
        except NotLiteral:
            task.problem(task.decorator, "task_routes gives it more than a queue", "queues-and-routes")
            queue = None
        if queue is not None:
            task.options["queue"] = f'"{queue}"'
    limit = settings.get("task_time_limit", None)
    if limit and "time_limit" not in given:
        task.options["timeout"] = str(limit)
        task.note(task.decorator, 'a thread is not killed at its timeout; with kind="process" it is', "time-limits")
    if "result_backend" not in settings.values and "ignore_result" not in given and _returns(task.function):
        task.note(task.decorator, "its result was dropped; it now is stored, and must be JSON", "results")
    late: Any = settings.get("task_acks_late", False)
    if "acks_late" in given:
        try:
            late = literal(given["acks_late"], task.module)
        except NotLiteral:
            task.problem(given["acks_late"], "acks_late is not a literal", "acknowledgement")
    if late:
        task.note(task.decorator, "a job whose worker died runs again, up to 3 times", "acknowledgement")
    else:
        task.options["max_lost"] = "1"


def _returns(function: cst.FunctionDef) -> bool:
    """Whether a function, or one inside it, returns a value."""
    return any(isinstance(node, cst.Return) and node.value is not None for node in below(function.body))
