"""Finds synchronous functions that run on an event loop, because an async function of the package calls them.

`enqueue_sync` refuses to block an event loop, where Celery's `delay` does block it.
"""

from __future__ import annotations

import libcst as cst

from treadle.contrib.celery.model import Module, Use
from treadle.contrib.celery.package import Package


def functions_on_loops(package: Package) -> dict[str, str]:
    """The full names of such functions, and the async function that calls each, over others or directly."""
    calls: dict[str, set[str]] = {}
    begins: set[str] = set()
    for module in package.modules.values():
        visitor = _Calls(package, module)
        module.tree.visit(visitor)
        begins |= visitor.begins
        for caller, functions in visitor.calls.items():
            calls.setdefault(caller, set()).update(functions)
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
        function = use.module.function_of(use.node)
        if not use.edits:
            continue
        if use.module.is_async(use.node) and _in_generator(use):
            use.problem(use.whole_node, "is in a generator, which cannot be awaited as such", "calls")
        if function is not None and not use.module.is_async(use.node) and _is_inside_async(use.module, function):
            reason = "may run on the event loop of the function around it, where enqueue_sync() refuses to block"
            use.problem(use.whole_node, reason, "calls")
        elif isinstance(function, cst.FunctionDef) and not use.module.is_async(use.node):
            caller = caller_of.get(full_name(use.module, function))
            if caller is not None:
                reason = f"runs on the event loop of {caller}, where enqueue_sync() refuses to block"
                use.problem(use.whole_node, reason, "calls")


def _is_inside_async(module: Module, function: cst.CSTNode) -> bool:
    above = module.function_of(function)
    while above is not None:
        if isinstance(above, cst.FunctionDef) and above.asynchronous is not None:
            return True
        above = module.function_of(above)
    return False


def _in_generator(use: Use) -> bool:
    """Whether the use is in the part of a generator expression that an `await` would make asynchronous."""
    below, above = use.node, use.module.parent(use.node)
    while above is not None and not isinstance(above, cst.FunctionDef | cst.Lambda):
        if isinstance(above, cst.GeneratorExp):
            return not (isinstance(below, cst.CompFor) and _is_first(use, below))
        below, above = above, use.module.parent(above)
    return False


def _is_first(use: Use, loop: cst.CompFor) -> bool:
    """Whether the use is in what the first `for` iterates over, which is computed outside of the generator."""
    node: cst.CSTNode | None = use.node
    while node is not None and node is not loop:
        if node is loop.iter:
            return True
        node = use.module.parent(node)
    return False


def full_name(module: Module, function: cst.FunctionDef) -> str:
    return f"{module.name}.{function.name.value}".lstrip(".")


class _Calls(cst.CSTVisitor):
    """The calls of functions of the package, by the function in which they are."""

    def __init__(self, package: Package, module: Module) -> None:
        self._package, self._module = package, module
        self.calls: dict[str, set[str]] = {}
        self.begins: set[str] = set()

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        if node.asynchronous is not None:
            self.begins.add(full_name(self._module, node))

    def visit_Call(self, node: cst.Call) -> None:
        function = self._module.function_of(node)
        func = node.func
        called = self._package.resolve(self._module.canonical(func))
        if isinstance(func, cst.Attribute) and isinstance(func.value, cst.Name) and func.value.value == "self":
            called = f"{self._module.name}.{func.attr.value}".lstrip(".")
        if called is not None and isinstance(function, cst.FunctionDef):
            self.calls.setdefault(full_name(self._module, function), set()).add(called)
