"""Rewrites the uses of `self` in a task with `bind=True`: `self.request`, `self.retry` and the constants."""

from __future__ import annotations

from typing import Any, Final

import libcst as cst
from libcst.metadata import FunctionScope

from treadle.contrib.celery.model import Build, Module, TaskDef

READS: Final = {  # attribute of `self` -> the expression that replaces it, with {current} for the function
    "request.id": "{current}().id",
    "request.retries": "{current}().attempt - 1",
    "name": "{current}().task",
}
RETRY_ARGS: Final = {"exc", "countdown"}


def bound_body(task: TaskDef) -> bool:
    """Plan the edits of a task's function, or note what cannot be rewritten. Returns whether it calls `self.retry`."""
    module, asks = task.module, False
    for access in _accesses(task):
        node: cst.CSTNode = access
        attributes: list[str] = []
        while isinstance(above := module.parent(node), cst.Attribute) and above.value is node:
            node = above
            attributes.append(above.attr.value)
        read = ".".join(attributes)
        call = module.parent(node)
        if read == "retry" and isinstance(call, cst.Call) and call.func is node:
            asks = True
            _retry(task, call)
        elif read in READS:
            task.edits[node] = _reading(module, node, read)
            task.reads = True
        elif read == "max_retries":
            task.edits[node] = lambda _, module: module.parse(_number(task))
        else:
            section = "task-context"
            task.problem(node, f"`{module.code(node)}` has no counterpart that is certain", section)
    return asks


def _number(task: TaskDef) -> str:
    return "None" if task.attempts == "None" else str(int(task.attempts) - 1)


def _accesses(task: TaskDef) -> list[cst.CSTNode]:
    """The nodes that read the first parameter."""
    module = task.module
    scope: Any = next(
        (s for s in set(module.scopes.values()) if isinstance(s, FunctionScope) and s.node is task.function), None
    )
    reads = []
    for assignment in scope[task.bound] if scope is not None else ():
        if not isinstance(getattr(assignment, "node", None), cst.Param):
            task.problem(task.function, f"{task.bound} is assigned again in the function", "task-context")
        reads += [access.node for access in assignment.references]
    return sorted(reads, key=module.line)


def _reading(module: Module, node: cst.CSTNode, read: str) -> Build:
    """The edit of one place; a difference is in parentheses where it is part of another operation."""
    template = READS[read]
    if " " in template and isinstance(module.parent(node), cst.BinaryOperation | cst.UnaryOperation | cst.Subscript):
        template = f"({template})"

    def build(_: Any, module: Module) -> cst.CSTNode:
        return module.parse(template.format(current=module.wanted["treadle.current"]))

    return build


def _retry(task: TaskDef, call: cst.Call) -> None:
    """`raise self.retry(exc=exc, countdown=30)`, with or without `raise`, as a statement of its own."""
    module = task.module
    arguments = {arg.keyword.value: arg.value for arg in call.args if arg.keyword is not None and not arg.star}
    above = module.parent(call)
    if len(arguments) != len(call.args) or set(arguments) - RETRY_ARGS:
        task.problem(call, "self.retry() with more than exc= and countdown= is not certain", "retries")
        return
    if isinstance(above, cst.Raise) and above.cause is None:
        statement: cst.CSTNode = above
    elif isinstance(above, cst.Expr):
        statement = above
    else:
        task.problem(call, "self.retry() is not a statement of its own", "retries")
        return

    def build(updated: Any, module: Module) -> cst.CSTNode:
        # `updated` already has the edits inside the call.
        inner: Any = updated.exc if isinstance(statement, cst.Raise) else updated.value
        parts = {arg.keyword.value: module.text(arg.value) for arg in inner.args}
        wait, cause = parts.get("countdown", task.delay), parts.get("exc")
        text = f"{module.wanted['treadle.Retry']}.after({wait})"
        raised = module.parse(text)
        return cst.Raise(
            exc=raised,
            cause=None if cause is None else cst.From(module.parse(cause), cst.SimpleWhitespace(" ")),
            whitespace_after_raise=cst.SimpleWhitespace(" "),
            semicolon=updated.semicolon,
        )

    task.edits[statement] = build
    task.imports.add("Retry")
