"""The names of the steps in a task's source and in the functions that it uses.

Nothing is run. A name that is built by an f-string becomes a pattern; a name from a variable makes the list open, and
then no recorded step counts as unknown.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final

from msgspec import Struct

from treadle.durable import PATCHED

PREFIX: Final = {  # method -> how its checkpoints begin
    "step": "",
    "sleep": "sleep:",
    "wait_for": "wait:",
    "receive": "receive:",
    "receive_ask": "receive:",
    "publish": "publish:",
    "approve": "approve:",
    "patched": PATCHED,
}
OF_JOBS: Final = {  # method -> the checkpoints of waits, many of which are named after the task of a job
    "call": "call:.*",
    "map": "map:.*",
    "as_completed": "(as_completed|ended):.*",
    "first": "first(:.*)?",
    "timeout": "timeout(:.*)?",
}
MOST: Final = 200  # functions that are read for one task
STEP_NUMBER: Final = re.compile(r"(#p?\d+)+$")  # what ends the names of the second and later steps of a name


class StepNames(Struct):
    """The steps that the source of a task names.

    names      the names as checkpoints have them -> the function of the step, if it is known
    patterns   those with changing parts
    is_open    other names may occur: a name comes from a variable, or no step was found
    """

    names: dict[str, Callable[..., Any] | None]
    patterns: list[re.Pattern[str]]
    is_open: bool

    def has(self, recorded: str) -> bool:
        """Whether the source may take the step of this checkpoint."""
        name = STEP_NUMBER.sub("", recorded)
        return self.is_open or name in self.names or any(pattern.fullmatch(name) for pattern in self.patterns)

    @property
    def patches(self) -> list[str]:
        """The names of the patches in the source."""
        return [name.removeprefix(PATCHED) for name in self.names if name.startswith(PATCHED)]


def steps_of(function: Callable[..., Any]) -> StepNames:
    """The steps in the source of a function. Without a source, all names may occur."""
    names = StepNames({}, [], False)
    for source, tree in _sources(inspect.unwrap(function)):
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and (method := _method(call.func)) in PREFIX:
                _note(names, call, method, source)
            elif isinstance(call, ast.Call) and method in OF_JOBS:
                names.patterns.append(re.compile(OF_JOBS[method]))
    if not names.names and not names.patterns:
        names.is_open = True
    return names


def _method(called: ast.expr) -> str:
    """The name of the method that is called; "step" for `step.options(...)(...)`; "" for anything else."""
    if isinstance(called, ast.Call) and isinstance(called.func, ast.Attribute) and called.func.attr == "options":
        called = called.func.value
    return called.attr if isinstance(called, ast.Attribute) else ""


def _note(names: StepNames, call: ast.Call, method: str, function: FunctionType) -> None:
    name: ast.expr | None = call.args[0] if call.args and method != "sleep" else None
    for keyword in call.keywords:
        if keyword.arg == "name":
            name = keyword.value
        elif keyword.arg is None:
            names.is_open = True  # **options
    prefix = PREFIX[method]
    if name is None and method == "sleep":
        names.names[f"{prefix}sleep"] = None
    elif isinstance(name, ast.Constant) and isinstance(name.value, str):
        value = _resolved(call.args[1], function) if method == "step" and len(call.args) > 1 else None
        names.names[prefix + name.value] = value if callable(value) else None
    elif isinstance(name, ast.JoinedStr):
        parts = (re.escape(str(p.value)) if isinstance(p, ast.Constant) else "(?s:.*)" for p in name.values)
        names.patterns.append(re.compile(re.escape(prefix) + "".join(parts)))
    else:
        names.is_open = True


def _sources(function: Callable[..., Any]) -> Iterator[tuple[FunctionType, ast.AST]]:
    """The function, and the functions of the user's program that it calls, each with its syntax tree."""
    waiting, seen = [function], set[int]()
    home = _home(function)
    while waiting and len(seen) < MOST:
        part: Any = waiting.pop()
        part = inspect.unwrap(part.__func__ if isinstance(part, MethodType) else part)
        if not isinstance(part, FunctionType) or id(part) in seen or _home(part) != home:
            continue
        seen.add(id(part))
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(part)))
        except (OSError, TypeError, SyntaxError, ValueError):
            continue
        yield part, tree
        for node in ast.walk(tree):
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
                waiting += _functions(_resolved(node, part))


def _home(function: Any) -> str:
    """The top package of a function, which separates the user's program from libraries."""
    return str(getattr(function, "__module__", None) or "").partition(".")[0]


def _functions(value: Any) -> list[Any]:
    if isinstance(value, FunctionType | MethodType):
        return [value]
    if isinstance(value, type):
        return [member for member in vars(value).values() if isinstance(member, FunctionType)]
    own = getattr(value, "__wrapped__", None) if callable(value) and not isinstance(value, ModuleType) else None
    return [own] if isinstance(own, FunctionType) else []


def _resolved(node: ast.expr, function: FunctionType) -> Any:
    """The object that a name, or an attribute of a module or class, stands for in this function; None: unknown."""
    if isinstance(node, ast.Name):
        closed = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))
        if node.id in closed:
            try:
                return closed[node.id].cell_contents
            except ValueError:  # the cell of the closure is not filled yet
                return None
        return function.__globals__.get(node.id)
    if isinstance(node, ast.Attribute):
        value = _resolved(node.value, function)
        if isinstance(value, ModuleType | type):
            return vars(value).get(node.attr)
    return None
