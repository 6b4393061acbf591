"""Applies the planned edits to a parsed file. Everything else keeps its bytes."""

from __future__ import annotations

from typing import Any, Final

import libcst as cst

from treadle.contrib.celery import imports
from treadle.contrib.celery.model import APP_MARK, Module, TaskDef, Use

WIDE: Final = 80  # characters of options in one line


class Edits(cst.CSTTransformer):
    """Replaces nodes, from the inside out."""

    def __init__(self, module: Module, tasks: list[TaskDef], entries: set[cst.CSTNode]) -> None:
        self._module, self._entries = module, entries
        self._tasks = {task.function: task for task in tasks}

    def on_leave(self, original: Any, updated: Any) -> Any:
        changed = super().on_leave(original, updated)
        build = self._module.edits.get(original)
        return changed if build is None else build(changed, self._module)

    def leave_Dict(self, original: cst.Dict, updated: cst.Dict) -> cst.Dict:
        """Without the beat entries that became decorators."""
        if not self._entries & set(original.elements):
            return updated
        pairs = zip(original.elements, updated.elements, strict=True)
        return updated.with_changes(elements=[new for old, new in pairs if old not in self._entries])

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef) -> Any:
        task = self._tasks.get(original)
        if task is None:
            return updated
        decorators = []
        for old, new in zip(original.decorators, updated.decorators, strict=True):
            if old is task.decorator:
                decorators += self._decorators(task, new)
            else:
                decorators.append(new)
        function = updated.with_changes(decorators=decorators)
        if task.bound is not None:
            function = function.with_changes(params=function.params.with_changes(params=function.params.params[1:]))
        if not task.before:
            return function
        names = {name.rpartition(".")[2]: local for name, local in self._module.wanted.items()}
        before: list[Any] = [
            cst.parse_statement(text.format(**names), config=self._module.tree.config_for_parsing)
            for text in task.before
        ]
        lead = list(function.leading_lines)
        before[0] = before[0].with_changes(leading_lines=lead)
        gap = [cst.EmptyLine(indent=False), cst.EmptyLine(indent=False)]
        return cst.FlattenSentinel([*before, function.with_changes(leading_lines=gap)])

    def _decorators(self, task: TaskDef, old: cst.Decorator) -> list[cst.Decorator]:
        """The decorators of the schedules and of the task, with the comments of the old one."""
        wanted = self._module.wanted
        app, options = wanted["app"], dict(task.options)
        for name in ("retry", "on_error"):
            if name in options:
                options[name] = options[name].replace("Retry", wanted["treadle.Retry"], 1)
        arguments = ", ".join(f"{name}={text}" for name, text in options.items())
        expressions = [self._module.parse(text.replace(APP_MARK, app)) for text in task.above]
        if len(arguments) > WIDE:
            end = self._module.tree.default_newline
            arguments = "".join(f"{end}    {name}={text}," for name, text in options.items()) + end
        expressions.append(self._module.parse(f"{app}.task({arguments})" if arguments else f"{app}.task"))
        decorators = [cst.Decorator(decorator=expression) for expression in expressions]
        decorators[0] = decorators[0].with_changes(leading_lines=old.leading_lines)
        decorators[-1] = decorators[-1].with_changes(trailing_whitespace=old.trailing_whitespace)
        return decorators


def rewritten(module: Module, tasks: list[TaskDef], uses: list[Use], app: str, leaving: set[str]) -> bytes:
    """The new content of a file. Raises SyntaxError if it does not compile, which is a bug."""
    for task in tasks:
        module.edits.update(task.edits)
    for use in uses:
        module.edits.update(use.edits)
    entries = {use.node for use in uses if use.schedule is not None}
    tree = module.tree.visit(Edits(module, tasks, entries))
    if leaving:
        tree = tree.visit(imports.Removal(leaving))
    tree = imports.inserted(tree, imports.lines(module, app))
    content = tree.bytes
    compile(content, str(module.path), "exec", dont_inherit=True)
    return content
