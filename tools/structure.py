"""Figures of the source tree: how many modules, how long, how wide, and which import each other in a cycle.

    python -m tools.structure [FOLDER]     default: src/treadle; the circles of `ui/` are shown, too

Lines are counted as they are; the length of a function excludes its docstring. A cycle is a group of modules that reach
each other by imports, including those under `TYPE_CHECKING` and inside functions. Each file is parsed once; its tree is
dropped as soon as its figures are known, because 1.4 million nodes make the garbage collector take three times as long
as the parser.
"""

from __future__ import annotations

import ast
import gc
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
Function = ast.FunctionDef | ast.AsyncFunctionDef
WORST = 5  # functions or modules listed per row
LINES = 400  # of a file, at most
PARAMETERS = 8  # of a constructor, at most
SCRIPT = re.compile(r'(?:from|import)\s*\(?\s*"(\.[^"]+)"')
FUNCTION = 60  # lines of a function without its docstring, at most


class Figure(NamedTuple):
    size: int
    where: str


class Module(NamedTuple):
    """A module, and its figures.

    named        what it imports, before it is known which of these names are modules: (base, names), or (module, ())
    functions    lines of each function
    constructors parameters of each `__init__`
    classes      attributes that each class sets on itself
    """

    name: str  # dotted
    path: Path
    lines: int
    named: tuple[tuple[str, tuple[str, ...]], ...]
    functions: tuple[Figure, ...]
    constructors: tuple[Figure, ...]
    classes: tuple[Figure, ...]


@contextmanager
def without_collector() -> Iterator[None]:
    """Trees have no cycles, but the collector visits every node of them again and again."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@cache
def modules(folder: Path) -> tuple[Module, ...]:
    """The modules of a package, by path. Read once in a process."""
    with without_collector():
        return tuple(_module(folder, path) for path in sorted(folder.rglob("*.py")))


def _module(folder: Path, path: Path) -> Module:
    parts = path.relative_to(folder.parent).with_suffix("").parts
    text = path.read_text()
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    package = name if parts[-1] == "__init__" else name.rpartition(".")[0]
    named, functions, makers, wide = list[tuple[str, tuple[str, ...]]](), [], [], []
    for node in _statements(ast.parse(text).body):
        if isinstance(node, Function):
            functions.append(Figure(_length(node), f"{name}.{node.name}"))
        elif isinstance(node, ast.ClassDef):
            where = f"{name}.{node.name}"
            made = (each for each in node.body if isinstance(each, Function) and each.name == "__init__")
            makers += [Figure(_parameters(each), where) for each in made]
            wide.append(Figure(len(_attributes(node)), where))
        elif isinstance(node, ast.Import):
            named += [(alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            named.append((_base(package, node), tuple(alias.name for alias in node.names)))
    return Module(name, path, text.count("\n"), tuple(named), tuple(functions), tuple(makers), tuple(wide))


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


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """These statements and all within them. No expression contains a statement, so most nodes are never visited."""
    left = list(body)
    while left:
        node = left.pop()
        yield node
        for inner in ("body", "orelse", "finalbody"):
            left += getattr(node, inner, ())
        for case in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            left += case.body


def _attributes(node: ast.ClassDef) -> set[str]:
    """The names that the methods of a class set on `self`."""
    found = set[str]()
    for each in _statements(node.body):
        targets = [*getattr(each, "targets", ()), *filter(None, [getattr(each, "target", None)])]
        targets += [item.optional_vars for item in getattr(each, "items", ()) if item.optional_vars is not None]
        found |= {
            target.attr
            for whole in targets
            for target in ast.walk(whole)
            if isinstance(target, ast.Attribute)
            and isinstance(target.ctx, ast.Store)
            and isinstance(target.value, ast.Name)
            and target.value.id == "self"
        }
    return found


def _base(package: str, node: ast.ImportFrom) -> str:
    """The module or package that `from ... import` names."""
    if not node.level:
        return node.module or ""
    above = package.split(".")[: len(package.split(".")) - node.level + 1]
    return ".".join([*above, node.module] if node.module else above)


def _imports(module: Module, known: frozenset[str]) -> set[str]:
    """The modules of the tree that a module imports: `from a import b` means a.b if that is a module."""
    found = set[str]()
    for base, names in module.named:
        inner = {f"{base}.{name}" for name in names}
        found |= (inner & known) | ({base} if not names or inner - known else set())
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


def _worst(places: Iterable[Figure]) -> str:
    return ", ".join(f"{size} {where}" for size, where in sorted(places, reverse=True)[:WORST])


def figures(folder: Path) -> Iterator[tuple[str, str]]:
    found = modules(folder)
    graph = imports(folder)
    sizes = sorted(module.lines for module in found)
    makers = [each for module in found for each in module.constructors]
    lengths = [each for module in found for each in module.functions]
    loops = circles(graph)
    long = [Figure(module.lines, module.name) for module in found if module.lines > LINES]
    yield "modules at the root", str(sum(module.path.parent == folder for module in found))
    yield "files, lines", f"{len(found)}, {sum(sizes)}"
    yield "lines of a file: p50 / p90 / max", f"{_at(sizes, 0.5)} / {_at(sizes, 0.9)} / {sizes[-1]}"
    yield f"files over {LINES} lines", f"{len(long)}: {_worst(long)}" if long else "0"
    yield "functions; the longest", f"{len(lengths)}; {_worst(lengths)}"
    wide = sum(each.size > PARAMETERS for each in makers)
    yield f"parameters of a constructor: over {PARAMETERS}", f"{wide}; {_worst(makers)}"
    yield "attributes that a class sets on itself", _worst(each for module in found for each in module.classes)
    yield "arrows between modules", str(sum(map(len, graph.values())))
    loops += circles(scripts(ROOT / "ui/src"))
    yield "circles of imports", f"{len(loops)}: {'; '.join(' '.join(sorted(it)) for it in loops)}" if loops else "0"


def imports(folder: Path) -> dict[str, set[str]]:
    """The modules that each module of a package imports."""
    found = modules(folder)
    known = frozenset(module.name for module in found)
    return {module.name: _imports(module, known) for module in found}


def scripts(folder: Path) -> dict[str, set[str]]:
    """The scripts that each script of a folder imports, also for their types, or only when they are needed."""
    paths = {path.relative_to(folder).with_suffix("").as_posix(): path for path in folder.rglob("*.ts*")}
    graph = {}
    for name, path in paths.items():
        names = SCRIPT.findall(path.read_text())
        others = {(path.parent / other).resolve().relative_to(folder.resolve()).as_posix() for other in names}
        graph[name] = others & paths.keys()
    return graph


def _at(sizes: list[int], share: float) -> int:
    return sizes[min(len(sizes) - 1, int(len(sizes) * share))]


def main(words: list[str]) -> None:
    folder = Path(words[0]).resolve() if words else ROOT / "src/treadle"
    for name, said in figures(folder):
        print(f"{name:<40} {said}")


if __name__ == "__main__":
    main(sys.argv[1:])
