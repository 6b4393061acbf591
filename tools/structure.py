"""Figures of the source tree: how many modules, how long, how wide, and which import each other in a cycle.

    python -m tools.structure [FOLDER]     default: src/treadle

Lines are counted as they are; the length of a function excludes its docstring. A cycle is a group of modules that reach
each other by imports, including those under `TYPE_CHECKING` and inside functions.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
Function = ast.FunctionDef | ast.AsyncFunctionDef
WORST = 5  # functions or modules listed per row


class Place(NamedTuple):
    size: int
    where: str


class Module(NamedTuple):
    name: str  # dotted
    path: Path
    tree: ast.Module
    lines: int


def modules(folder: Path) -> list[Module]:
    found = []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        text = path.read_text()
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found.append(Module(name, path, ast.parse(text), text.count("\n")))
    return found


def _functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def _length(function: Function) -> int:
    assert function.end_lineno is not None
    first = function.body[0]
    if ast.get_docstring(function) is not None and first.end_lineno is not None:
        return function.end_lineno - function.lineno + 1 - (first.end_lineno - first.lineno + 1)
    return function.end_lineno - function.lineno + 1


def _parameters(function: Function) -> int:
    """The number of parameters that a caller passes; `**options` counts as one."""
    given = function.args
    return len(given.posonlyargs + given.args + given.kwonlyargs) - 1 + bool(given.vararg) + bool(given.kwarg)


def _attributes(node: ast.ClassDef) -> set[str]:
    """The names that the methods of a class set on `self`."""
    return {
        target.attr
        for target in ast.walk(node)
        if isinstance(target, ast.Attribute)
        and isinstance(target.ctx, ast.Store)
        and isinstance(target.value, ast.Name)
        and target.value.id == "self"
    }


def _imports(module: Module, known: Mapping[str, Module]) -> set[str]:
    """The modules of the tree that a module imports: `from a import b` means a.b if that is a module."""
    package = module.name if module.path.name == "__init__.py" else module.name.rpartition(".")[0]
    found = set[str]()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            inner = {f"{base}.{alias.name}" for alias in node.names}
            found |= {name for name in inner if name in known} | ({base} if inner - known.keys() else set())
    return {name for name in found if name in known and name != module.name}


def circles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Groups of modules that reach each other (Tarjan, 1972)."""
    number, low, on, stack, found = dict[str, int](), dict[str, int](), set[str](), list[str](), list[set[str]]()

    def visit(name: str) -> None:
        number[name] = low[name] = len(number)
        stack.append(name)
        on.add(name)
        for other in graph[name]:
            if other not in number:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in on:
                low[name] = min(low[name], number[other])
        if low[name] == number[name]:
            group = set[str]()
            while name not in group:
                group.add(stack.pop())
            on.difference_update(group)
            if len(group) > 1:
                found.append(group)

    for name in graph:
        if name not in number:
            visit(name)
    return found


def _worst(places: Iterable[Place]) -> str:
    return ", ".join(f"{size} {where}" for size, where in sorted(places, reverse=True)[:WORST])


def figures(folder: Path) -> Iterator[tuple[str, str]]:
    found = modules(folder)
    known = {module.name: module for module in found}
    graph = {module.name: _imports(module, known) for module in found}
    sizes = sorted(module.lines for module in found)
    classes = [(module, node) for module in found for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)]
    makers = [
        Place(_parameters(it), f"{module.name}.{node.name}")
        for module, node in classes
        for it in node.body
        if isinstance(it, Function) and it.name == "__init__"
    ]
    wide = [Place(len(_attributes(node)), f"{module.name}.{node.name}") for module, node in classes]
    lengths = [Place(_length(it), f"{module.name}.{it.name}") for module in found for it in _functions(module.tree)]
    loops = circles(graph)
    long = [Place(module.lines, module.name) for module in found if module.lines > 400]
    yield "modules at the root", str(sum(module.path.parent == folder for module in found))
    yield "files, lines", f"{len(found)}, {sum(sizes)}"
    yield "lines of a file: p50 / p90 / max", f"{_at(sizes, 0.5)} / {_at(sizes, 0.9)} / {sizes[-1]}"
    yield "files over 400 lines", f"{len(long)}: {_worst(long)}" if long else "0"
    yield "functions; the longest", f"{len(lengths)}; {_worst(lengths)}"
    yield "parameters of a constructor: over 8", f"{sum(it.size > 8 for it in makers)}; {_worst(makers)}"
    yield "attributes that a class sets on itself", _worst(wide)
    yield "arrows between modules", str(sum(map(len, graph.values())))
    yield "circles of imports", f"{len(loops)}: {'; '.join(' '.join(sorted(it)) for it in loops)}" if loops else "0"


def _at(sizes: list[int], share: float) -> int:
    return sizes[min(len(sizes) - 1, int(len(sizes) * share))]


def main(words: list[str]) -> None:
    folder = Path(words[0]).resolve() if words else ROOT / "src/treadle"
    for name, said in figures(folder):
        print(f"{name:<40} {said}")


if __name__ == "__main__":
    main(sys.argv[1:])
