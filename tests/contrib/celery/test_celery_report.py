"""The report of `treadle from celery` on a whole program: it names every line that still leads to Celery."""

from __future__ import annotations

import ast
import difflib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from treadle.contrib.celery import Plan, plan
from treadle_testkit.shows import shows

PROGRAM = Path(__file__).with_name("program")


@pytest.fixture
def moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """The plan for a copy of the program."""
    shutil.copytree(PROGRAM / "shop", tmp_path / "shop", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path)
    return plan(Path("shop"))


class Names(ast.NodeVisitor):
    """The lines of a module that use a name of Celery, of its app, or of a task that stayed.

    module  the dotted name of the module
    wanted  full names; each prefix of a longer name counts, too
    """

    def __init__(self, module: str, wanted: set[str]) -> None:
        self._package, self._wanted = module.rpartition(".")[0] or module, wanted
        self._here = module
        self._known: dict[str, str] = {}
        self.lines: set[int] = set()

    def _leads(self, full: str) -> bool:
        return any(f"{full}.".startswith(f"{each}.") for each in self._wanted)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        source = ".".join(filter(None, [self._package if node.level else "", node.module or ""]))
        for alias in node.names:
            self._known[alias.asname or alias.name] = full = f"{source}.{alias.name}"
            if self._leads(full):
                self.lines.add(node.lineno)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._known[alias.asname or alias.name.partition(".")[0]] = alias.name
            if self._leads(alias.name):
                self.lines.add(node.lineno)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if self._leads(f"{self._here}.{node.name}"):
            self.lines.add((node.decorator_list or [node])[0].lineno)
        self.generic_visit(node)

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._use(node)

    def visit_Name(self, node: ast.Name) -> None:
        self._use(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and node.value in self._wanted:
            self.lines.add(node.lineno)

    def _use(self, node: ast.expr) -> None:
        full = self._full(node)
        if full is not None and self._leads(full):
            self.lines.add(node.lineno)
        else:
            self.generic_visit(node)

    def _full(self, node: ast.expr) -> str | None:
        if isinstance(node, ast.Name):
            return self._known.get(node.id, f"{self._here}.{node.id}")
        inner = self._full(node.value) if isinstance(node, ast.Attribute) else None
        return f"{inner}.{node.attr}" if inner is not None and isinstance(node, ast.Attribute) else None


def old_lines(before: str, after: str, line: int) -> set[int]:
    """The lines of the old file from which a line of the new one comes."""
    matcher = difflib.SequenceMatcher(None, before.splitlines(), after.splitlines(), autojunk=False)
    for kind, first, end, start, stop in matcher.get_opcodes():
        if start < line <= stop:
            return {first + line - start} if kind == "equal" else set(range(first + 1, end + 1))
    raise AssertionError(line)


def around(tree: ast.AST, line: int) -> range:
    """The lines of the smallest expression over several lines around this one; else this one alone."""
    spans = [
        range(node.lineno, (node.end_lineno or node.lineno) + 1)
        for node in ast.walk(tree)
        if isinstance(node, ast.expr) and node.lineno != node.end_lineno
    ]
    return min((span for span in spans if line in span), key=len, default=range(line, line + 1))


def leading(moved: Plan) -> Iterator[tuple[str, set[int], str]]:
    """(file, lines of the old file, text) of each line of the rewritten program that leads to Celery."""
    wanted = {"celery", "kombu", "shop.celery.app", *moved.stayed}
    for path in sorted(Path("shop").rglob("*.py")):
        before = path.read_text()
        after = moved.files[path].decode() if path in moved.files else before
        module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
        visitor = Names(f"{module}.__init__" if path.name == "__init__.py" else module, wanted)
        tree = ast.parse(after)
        visitor.visit(tree)
        for line in sorted(visitor.lines):
            lines = set().union(*(old_lines(before, after, each) for each in around(tree, line)))
            yield path.as_posix(), lines, after.splitlines()[line - 1]


@pytest.mark.slow
@shows("After a Celery program was moved, the codemod's report names every line that still leads to Celery")
def test_every_other_line_is_named(moved: Plan) -> None:
    assert moved.stayed, "the program has tasks that cannot be moved"
    found = list(leading(moved))
    assert len(found) > 20, found
    left = {(each.file, each.line) for each in moved.findings if each.kind == "left"}
    missing = [(file, text) for file, lines, text in found if not any((file, line) in left for line in lines)]
    assert missing == []
