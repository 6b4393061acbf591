"""Turns Celery's options of retries into a `Retry` policy and an `on_error`.

Celery retries what `autoretry_for` names and what calls `self.retry`, and nothing else.
"""

from __future__ import annotations

from typing import Any, Final

import libcst as cst

from treadle.contrib.celery.model import TaskDef
from treadle.contrib.celery.settings import NotLiteral, literal

DELAY: Final = 180  # default_retry_delay, s
RETRIES: Final = 3  # max_retries
LONGEST: Final = 600  # retry_backoff_max, s
TREADLE_MAX: Final = 300  # s; a longer constant delay needs max=


def retry_options(task: TaskDef, given: dict[str, cst.BaseExpression], asks: bool) -> None:
    """Set `retry` and `on_error` of a task with `autoretry_for`, or (`asks`) with a call of `self.retry`."""
    values: dict[str, Any] = {}
    for name, node in given.items():
        if name == "autoretry_for":
            continue
        try:
            values[name] = literal(node, task.module)
        except NotLiteral:
            task.problem(node, f"{name} is not a literal", "retries")
            return
    more = values.get("retry_kwargs", {})
    if not isinstance(more, dict) or set(more) - {"max_retries", "countdown"}:
        task.problem(given["retry_kwargs"], "retry_kwargs has more than max_retries and countdown", "retries")
        return
    own = values.get("max_retries", RETRIES)
    retries = own if more.get("max_retries") is None else more["max_retries"]
    if retries != own and task.bound is not None and _reads_own(task, asks):
        reason = "max_retries of retry_kwargs differs from that of the task, which its function reads"
        task.problem(given["retry_kwargs"], reason, "retries")
        return
    if retries is not None and (isinstance(retries, bool) or not isinstance(retries, int)):
        task.problem(task.decorator, f"max_retries={retries!r:.40} is not a number", "retries")
        return
    task.attempts = "None" if retries is None else str(retries + 1)
    delay = more.get("countdown", values.get("default_retry_delay", DELAY))
    task.delay = str(values.get("default_retry_delay", DELAY))
    backoff = values.get("retry_backoff", False)
    if not isinstance(delay, int | float) or not isinstance(backoff, int | float) or backoff < 0:
        task.problem(task.decorator, "the delay between retries is not a number", "retries")
        return
    kinds = _kinds(task, given.get("autoretry_for"))
    if kinds is None:
        return
    if kinds or asks:
        plain = f"Retry(attempts={task.attempts})"
        task.options["retry"] = _policy(task.attempts, delay, backoff, values) if kinds else plain
        task.options["on_error"] = f"Retry.only({', '.join(kinds)})"
        task.imports.add("Retry")


def _reads_own(task: TaskDef, asks: bool) -> bool:
    """Whether the function depends on the task's own max_retries: it calls `self.retry`, or reads the number."""
    return asks or f"{task.bound}.max_retries" in task.module.text(task.function.body)


def _kinds(task: TaskDef, node: cst.BaseExpression | None) -> list[str] | None:
    """The classes of `autoretry_for`, as source; None: they cannot be read."""
    if node is None:
        return []
    if not isinstance(node, cst.Tuple | cst.List):
        task.problem(node, "autoretry_for is not written as a tuple of classes", "retries")
        return None
    kinds = []
    for element in node.elements:
        name = task.module.canonical(element.value)
        if isinstance(element, cst.StarredElement) or name is None or name.startswith("celery."):
            task.problem(node, "autoretry_for has parts that cannot be read", "retries")
            return None
        kinds.append(task.module.text(element.value))
    return kinds


def _policy(attempts: str, delay: float, backoff: float, values: dict[str, Any]) -> str:
    if not backoff:
        most = f", max={delay}" if delay > TREADLE_MAX else ""
        return f"Retry(attempts={attempts}, base={delay}, factor=1, jitter=0{most})"
    base = int(max(1.0, backoff))
    jitter = 1 if values.get("retry_jitter", True) else 0
    return f"Retry(attempts={attempts}, base={base}, max={values.get('retry_backoff_max', LONGEST)}, jitter={jitter})"
