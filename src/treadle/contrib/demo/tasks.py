"""The app of the demo, `treadle.contrib.demo.tasks:app`: one job indexes one module, a last one joins the results."""

from __future__ import annotations

import ast
import tokenize

from msgspec import Struct

from treadle import Abort, App, current

TOP = 10

app = App()


class Function(Struct):
    """A function and its length in lines."""

    name: str
    lines: int


class Module(Struct):
    """The result of one index job: the counts of one file."""

    name: str
    lines: int
    functions: int
    classes: int
    longest: list[Function]


class Report(Struct):
    """The result of the last job: the sums and the longest functions."""

    modules: int
    lines: int
    functions: int
    classes: int
    longest: list[Function]
    biggest: list[Module]
    missing: list[str]  # jobs without a result


@app.task(name="demo.index", keep=3600, keep_failed=3600)
def index(name: str, path: str) -> Module:
    """Parse a file: count its lines, functions and classes, and list its longest functions."""
    try:
        with tokenize.open(path) as file:
            text = file.read()
        tree = ast.parse(text)
    except (SyntaxError, UnicodeDecodeError) as error:
        raise Abort(f"{path} is no Python of this version: {error}") from error
    functions, classes = [], 0
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.append(Function(f"{name}.{node.name}", (node.end_lineno or node.lineno) - node.lineno + 1))
        classes += isinstance(node, ast.ClassDef)
    functions.sort(key=lambda function: -function.lines)
    return Module(name, text.count("\n") + 1, len(functions), classes, functions[:TOP])


@app.task(name="demo.report", keep=3600, keep_failed=3600)
async def report() -> Report:
    """Join the results of the jobs that this one waited for."""
    results = await current().upstream()
    modules = [result for result in results if isinstance(result, Module)]
    longest = sorted(
        (function for module in modules for function in module.longest),
        key=lambda function: (-function.lines, function.name),
    )
    biggest = sorted(modules, key=lambda module: (-module.lines, module.name))[:TOP]
    return Report(
        modules=len(modules),
        lines=sum(module.lines for module in modules),
        functions=sum(module.functions for module in modules),
        classes=sum(module.classes for module in modules),
        longest=longest[:TOP],
        biggest=[Module(module.name, module.lines, module.functions, module.classes, []) for module in biggest],
        missing=[id for id, result in zip(current().after, results, strict=True) if isinstance(result, Exception)],
    )
