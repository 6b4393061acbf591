"""Finds the app of a project when a command names none, and the modules called `tasks` that belong to it.

It reads source files and imports none of them, so that a search has no side effects.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from treadle.cli.output import FAILED, USAGE, Stop

DEEP: Final = 3  # packages within packages that are searched
MOST: Final = 2_000  # files that are read: 1 s
TASKS: Final = "tasks"  # the name under which a single module is imported
SKIPPED: Final = frozenset({"tests", "test", "docs", "build", "dist", "node_modules", "site-packages", "__pycache__"})

BROKEN: Final = ast.Module(body=[], type_ignores=[])
OF_TESTS: Final = re.compile(r"(test_.*|.*_test|conftest)$")


class Found(NamedTuple):
    """An app, as MODULE:APP, and modules of its project that define tasks."""

    named: str
    modules: tuple[str, ...]
    root: Path  # the folder that the names start from


def search(here: Path) -> Found:
    """The app of the project in this folder. Raises Stop if there is none, or more than one."""
    for root in (here, here / "src"):
        sources, broken = _sources(root)
        apps = [(module, name) for module, tree in sources.items() for name in _apps(tree)]
        if len(apps) > 1:
            names = " or ".join(f"{module}:{name}" for module, name in apps[:5])
            raise Stop(USAGE, f"found {len(apps)} apps in {root}; name one: {names}")
        if apps:
            [(module, name)] = apps
            return Found(f"{module}:{name}", _task_modules(module, sources), root)
        if broken is not None:
            raise Stop(FAILED, f"{broken.filename}, line {broken.lineno}: {broken.msg}") from broken
    raise Stop(
        USAGE, f"name an app, as MODULE:APP: no module in {here} or its packages contains `app = App(...)` of treadle"
    )


def apps_in(here: Path) -> list[str]:
    """Every app of the project in this folder, as MODULE:APP."""
    return [f"{module}:{name}" for root in (here, here / "src") for module, tree in _sources(root)[0].items()
            for name in _apps(tree)]  # fmt: skip


def _sources(root: Path) -> tuple[dict[str, ast.Module], SyntaxError | None]:
    """The syntax trees of the modules in this folder and its packages by their dotted names, and the first error. A
    module of tasks that has one is kept without a tree, so that its import shows the error."""
    trees, broken = dict[str, ast.Module](), None
    for name, path in itertools.islice(_files(root), MOST):
        try:
            text = path.read_text(encoding="utf-8")
            if "treadle" in text or path.stem == TASKS:
                trees[name] = ast.parse(text, str(path))
        except SyntaxError as error:
            broken = broken or error
            if path.stem == TASKS:
                trees[name] = BROKEN
        except (OSError, ValueError):
            continue  # we may not read it, or it is not text
    return trees, broken


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    """The modules in this folder and its packages by their dotted names."""
    folders = [(root, "", 0)]
    while folders:
        folder, prefix, depth = folders.pop(0)
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            name = prefix + path.stem if path.stem != "__init__" else prefix.rstrip(".")
            if path.suffix == ".py" and path.stem.isidentifier() and name and not OF_TESTS.match(path.stem):
                yield name, path
            elif path.name not in SKIPPED and depth < DEEP and (path / "__init__.py").is_file():
                folders.append((path, f"{prefix}{path.name}.", depth + 1))


def _apps(tree: ast.Module) -> Iterator[str]:
    """The names that a module assigns an `App(...)` of treadle."""
    called = {"treadle.App"}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "treadle" and not node.level:
            called |= {alias.asname or alias.name for alias in node.names if alias.name == "App"}
        elif isinstance(node, ast.Import):
            called |= {f"{alias.asname}.App" for alias in node.names if alias.name == "treadle" and alias.asname}
    for node in tree.body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if isinstance(value, ast.Call) and ast.unparse(value.func) in called:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]  # type: ignore[attr-defined]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def _task_modules(module: str, sources: dict[str, ast.Module]) -> tuple[str, ...]:
    """The modules called `tasks` in the app's top package; of an app in a module without package, those that import
    that module."""
    top = module.partition(".")[0]
    is_package = top != module or any(name.startswith(f"{top}.") for name in sources)
    modules = [name for name in sources if name.rpartition(".")[2] == TASKS and name != module]
    if is_package:
        return tuple(name for name in modules if name.startswith(f"{top}."))
    return tuple(name for name in modules if sources[name] is BROKEN or module in _imported(sources[name]))


def _imported(tree: ast.Module) -> set[str]:
    names = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
    return names
