"""Chooses the names of additional imports, inserts them, and removes imports that nothing needs any more."""

from __future__ import annotations

from typing import Any

import libcst as cst

from treadle.contrib.celery.model import Module
from treadle.contrib.celery.package import Package, local_names, statements

APP_MODULE = "treadle_app"


def choose(module: Module, package: Package, app: str, needs: set[str], leaving: set[str]) -> None:
    """Fill `module.wanted`: the local name of each import.

    app      the dotted name of the Treadle app
    leaving  local names whose imports will be removed
    """
    wanted = {need: app if need == "app" else need for need in needs}
    known = _imported(module, package)
    used = names_in(module.tree) - leaving
    for need, full in sorted(wanted.items()):
        if full in known:
            module.wanted[need] = known[full]
            continue
        short = full.rpartition(".")[2]
        name = short if short not in used else "treadle_app" if need == "app" else f"treadle_{short}"
        while name in used:
            name += "_"
        module.wanted[need] = name


def _imported(module: Module, package: Package) -> dict[str, str]:
    """The names that a module imports at its own level, by their full names."""
    prefix = f"{module.name}."
    return {
        source: name.removeprefix(prefix)
        for name, source in package.aliases.items()
        if name.startswith(prefix) and name.count(".") == prefix.count(".")
    }


def names_in(tree: cst.Module) -> set[str]:
    """Every plain name in a file, except those after a dot and those of keywords."""
    names: set[str] = set()
    rest: list[cst.CSTNode] = [tree]
    while rest:
        node = rest.pop()
        if isinstance(node, cst.Name):
            names.add(node.value)
        elif isinstance(node, cst.ImportFrom):
            names.update(local_names(node))
        elif isinstance(node, cst.Attribute | cst.Arg):
            rest.append(node.value)
        else:
            rest.extend(node.children)
    return names


def lines(module: Module, app: str) -> list[str]:
    """The import statements to add."""
    known = {name for statement in statements(module.tree) for name in _given(statement)}
    wanted = {need: name for need, name in module.wanted.items() if name not in known}
    imports = []
    if "app" in wanted:
        place, _, short = app.rpartition(".")
        imports.append(f"from {place} import {_as(short, wanted.pop('app'))}" if place else f"import {short}")
    names = sorted(_as(need.removeprefix("treadle."), name) for need, name in wanted.items())
    if names:
        imports.insert(0, f"from treadle import {', '.join(names)}")
    return imports


def _as(short: str, name: str) -> str:
    return short if short == name else f"{short} as {name}"


def _given(statement: cst.BaseSmallStatement) -> list[str]:
    """The names of an import of Treadle or of its app that is there already."""
    if not isinstance(statement, cst.ImportFrom):
        return []
    source = cst.Module([]).code_for_node(statement.module) if statement.module is not None else ""
    if source != "treadle" and source.rpartition(".")[2] != APP_MODULE:
        return []
    return local_names(statement)


def inserted(tree: cst.Module, texts: list[str]) -> cst.Module:
    """The module with these statements after the imports at its top."""
    if not texts:
        return tree
    body, place = list(tree.body), 0
    for number, line in enumerate(body):
        small = line.body[0] if isinstance(line, cst.SimpleStatementLine) and line.body else None
        docstring = number == 0 and isinstance(small, cst.Expr)
        if isinstance(small, cst.Import | cst.ImportFrom) or docstring:
            place = number + 1
        elif not isinstance(line, cst.SimpleStatementLine) or not isinstance(small, cst.Import | cst.ImportFrom):
            break
    new: list[Any] = [cst.parse_statement(text, config=tree.config_for_parsing) for text in texts]
    if place == 0 and body:
        new[0] = new[0].with_changes(leading_lines=[])
    return tree.with_changes(body=[*body[:place], *new, *body[place:]])


class Removal(cst.CSTTransformer):
    """Removes names from the `from ... import ...` statements of a module's own level."""

    def __init__(self, names: set[str]) -> None:
        self._names = names

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        return False

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        return False

    def leave_ImportFrom(self, original: cst.ImportFrom, updated: cst.ImportFrom) -> Any:
        if isinstance(updated.names, cst.ImportStar):
            return updated
        kept = [alias for alias in updated.names if (alias.evaluated_alias or alias.evaluated_name) not in self._names]
        if len(kept) == len(updated.names):
            return updated
        if not kept:
            return cst.RemoveFromParent()
        if updated.lpar is None:
            kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        return updated.with_changes(names=kept)
