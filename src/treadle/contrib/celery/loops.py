"""Finds synchronous functions that run on an event loop, because an async function of the package calls them.

`enqueue_sync` refuses to block an event loop, where Celery's `delay` does block it.
"""

from __future__ import annotations

from typing import TypeGuard

import libcst as cst

from treadle.contrib.celery.model import Module, Use, below
from treadle.contrib.celery.package import Package


def functions_on_loops(package: Package) -> dict[str, str]:
    """The full name of each such function, and the async function that calls it, directly or through others."""
    calls: dict[str, set[str]] = {}
    begins: set[str] = set()
    for module in package.modules.values():
        for node in below(module.tree):
            if _is_async(node):
                begins.add(full_name(module, node))
            elif isinstance(node, cst.Call):
                function, called = module.function_of(node), _called(package, module, node.func)
                if called is not None and isinstance(function, cst.FunctionDef):
                    calls.setdefault(full_name(module, function), set()).add(called)
    caller_of: dict[str, str] = {}
    for begin in sorted(begins):
        todo = [begin]
        while todo:
            for called in sorted(calls.get(todo.pop(), ())):
                if called not in begins and called not in caller_of:
                    caller_of[called] = begin
                    todo.append(called)
    return caller_of


def refuse(package: Package, uses: list[Use]) -> None:
    """Add a problem to each use of a task in such a function."""
    caller_of = functions_on_loops(package)
    for use in uses:
        module, function = use.module, use.module.function_of(use.node)
        if not use.edits:
            continue
        if module.is_async(use.node):
            if _in_generator(use):
                use.problem(use.whole_node, "is in a generator, which cannot be awaited as such", "calls")
        elif function is not None and any(map(_is_async, module.above(function))):
            reason = "may run on the event loop of the function around it, where enqueue_sync() refuses to block"
            use.problem(use.whole_node, reason, "calls")
        elif isinstance(function, cst.FunctionDef) and (full := full_name(module, function)) in caller_of:
            reason = f"runs on the event loop of {caller_of[full]}, where enqueue_sync() refuses to block"
            use.problem(use.whole_node, reason, "calls")


def _in_generator(use: Use) -> bool:
    """Whether the use is in the part of a generator expression that an `await` would make asynchronous: all but what
    the first `for` iterates over, which is computed outside of the generator."""
    inner = [use.node]
    for above in use.module.above(use.node):
        if isinstance(above, cst.FunctionDef | cst.Lambda):
            return False
        if isinstance(above, cst.GeneratorExp):
            return above.for_in.iter not in inner
        inner.append(above)
    return False


def _is_async(node: cst.CSTNode) -> TypeGuard[cst.FunctionDef]:
    return isinstance(node, cst.FunctionDef) and node.asynchronous is not None


def _called(package: Package, module: Module, func: cst.BaseExpression) -> str | None:
    """The full name of a function that is called; `self.name()` counts as a function of the module."""
    if isinstance(func, cst.Attribute) and isinstance(func.value, cst.Name) and func.value.value == "self":
        return f"{module.name}.{func.attr.value}".lstrip(".")
    return package.resolve(module.canonical(func))


def full_name(module: Module, function: cst.FunctionDef) -> str:
    return f"{module.name}.{function.name.value}".lstrip(".")
