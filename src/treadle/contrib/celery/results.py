"""Rewrites the uses of a call's result. They are certain if the program drops it, waits for it, or reads its id."""

from __future__ import annotations

from typing import Any, Final

import libcst as cst

from treadle.contrib.celery.model import Module, Use

WAITS: Final = {"get", "wait", "join"}
IDS: Final = {"id", "task_id"}
STAYS: Final = "its result is used in a way that is not certain"
RAISES: Final = "a failed job raises JobFailed, not the exception of the task"
SECTION: Final = "results"


def plain(module: Module, node: cst.CSTNode, waited: str) -> str:
    """An awaited expression, in parentheses where it is part of another one."""
    above = module.parent(node)
    alone = isinstance(above, cst.Expr | cst.Assign | cst.AnnAssign | cst.Return | cst.Arg)
    return waited if alone else f"({waited})"


def result_of(use: Use, call: cst.Call, many: bool = False) -> None:
    """Plan the edits for the value of `call`. `many`: the call starts a group, and its value is a list of jobs."""
    module = use.module
    above = module.parent(call)
    if isinstance(above, cst.Expr) or _on_commit(module, call):
        return
    if isinstance(above, cst.Attribute):
        _attribute(use, above, many)
    elif isinstance(above, cst.Assign) and len(above.targets) == 1 and isinstance(above.targets[0].target, cst.Name):
        _variable(use, above.targets[0].target, many)
    else:
        use.problem(call, STAYS, SECTION)


def _on_commit(module: Module, node: cst.CSTNode) -> bool:
    """Whether it is the body of `transaction.on_commit(lambda: ...)`, which drops it."""
    above = module.parent(node)
    return isinstance(above, cst.Lambda) and passed_to_on_commit(module, above)


def passed_to_on_commit(module: Module, node: cst.CSTNode) -> bool:
    arg = module.parent(node)
    call = module.parent(arg) if isinstance(arg, cst.Arg) else None
    return isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute) and call.func.attr.value == "on_commit"


def _variable(use: Use, target: cst.Name, many: bool) -> None:
    module = use.module
    scope: Any = module.scopes[target]
    assignments = list(scope[target.value])
    if len(assignments) != 1 or getattr(scope, "globals", scope) is scope:
        use.problem(target, STAYS, SECTION)
        return
    for access in assignments[0].references:
        above = module.parent(access.node)
        if isinstance(above, cst.Attribute) and above.value is access.node:
            _attribute(use, above, many)
        else:
            use.problem(access.node, STAYS, SECTION)


def _attribute(use: Use, node: cst.Attribute, many: bool) -> None:
    """`result.get(timeout=3)`, `result.id`."""
    module, name = use.module, node.attr.value
    call = module.parent(node)
    if name in IDS and not many and not (isinstance(call, cst.Call) and call.func is node):
        use.edits[node] = lambda updated, _: updated.with_changes(attr=cst.Name("id"))
        return
    waits = isinstance(call, cst.Call) and call.func is node and name in WAITS and _only_timeout(call)
    if call is None or not waits or (many and module.is_async(call)):
        use.problem(node, f".{name} of a result has no counterpart that is certain", SECTION)
        return
    use.note(call, RAISES, SECTION)
    use.edits[call] = _waiting(call, many)


def renamed(call: Any, name: str) -> cst.Call:
    """The same call, but of the method `name` of the object."""
    changed: cst.Call = call.with_changes(func=call.func.with_changes(attr=cst.Name(name)))
    return changed


def _only_timeout(call: Any) -> bool:
    names = [arg.keyword.value if arg.keyword else "timeout" for arg in call.args]
    return not any(arg.star for arg in call.args) and names in ([], ["timeout"])


def _waiting(call: Any, many: bool) -> Any:
    def build(updated: Any, module: Module) -> cst.CSTNode:
        jobs, args = updated.func.value, ", ".join(module.text(arg).rstrip(", ") for arg in updated.args)
        if many:
            return module.parse(f"[each.result_sync({args}) for each in {module.text(jobs)}]")
        if module.is_async(call):
            return module.parse(plain(module, call, f"await {module.text(jobs)}.result({args})"))
        return renamed(updated, "result_sync")

    return build
