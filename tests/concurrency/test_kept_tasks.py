"""An attribute that keeps a task and is reset by that task: it needs `started`.

With an eager task factory a coroutine that does not wait ends before `create_task` returns. It has then reset the
attribute first, and the caller stores the task that has ended: nothing starts another one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = (ROOT / "src/treadle", ROOT / "packages/testkit/src/treadle_testkit")
STARTS = {"create_task", "ensure_future"}


def kept(tree: ast.Module) -> Iterator[str]:
    """`attribute <- method` for each attribute of a class that keeps the task of a method and is set by it."""
    for owner in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        methods = {node.name: node for node in owner.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        for node in ast.walk(owner):
            if isinstance(node, ast.Assign) and (method := begun(node.value)) in methods:
                for name in set(attributes(node)) & {
                    each for part in ast.walk(methods[method]) for each in attributes(part)
                }:
                    yield f"{owner.name}.{name} <- {method}"


def begun(value: ast.expr) -> str:
    """The method of `...create_task(self.METHOD(...))`; "": another expression."""
    match value:
        case ast.Call(
            func=ast.Attribute(attr=start) | ast.Name(id=start),
            args=[ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=method)), *_],
        ) if start in STARTS:
            return method
    return ""


def attributes(node: ast.AST) -> Iterator[str]:
    """The names that an assignment gives to attributes of `self`."""
    targets = node.targets if isinstance(node, ast.Assign) else []
    for target in targets:
        for each in target.elts if isinstance(target, ast.Tuple) else [target]:
            match each:
                case ast.Attribute(value=ast.Name(id="self"), attr=name):
                    yield name


def test_the_rule_finds_what_it_forbids() -> None:
    begins = " def f(self):\n  self.t = loop.create_task(self.g())\n"
    resets = " async def g(self):\n  self.a, self.t = 1, None\n"
    assert list(kept(ast.parse("class A:\n" + begins + resets))) == ["A.t <- g"]


def test_no_task_resets_the_attribute_that_keeps_it() -> None:
    texts = {path: path.read_text("utf-8") for source in SOURCES for path in source.rglob("*.py")}
    candidates = {
        path: text for path, text in texts.items() if re.search(r"(create_task|ensure_future)\(\s*self\.", text)
    }
    assert candidates
    assert [f"{path.name}: {found}" for path, text in candidates.items() for found in kept(ast.parse(text))] == []
