"""Finds every place that uses a task, the Celery app or Celery itself, and plans its edit or says why there is none."""

from __future__ import annotations

from typing import Any, Final

import libcst as cst
from msgspec import Struct, field

from treadle.contrib.celery.calls import checked, parts
from treadle.contrib.celery.canvas import SECTION as CANVAS_SECTION
from treadle.contrib.celery.canvas import SIGNATURES, Canvas
from treadle.contrib.celery.model import Build, Module, TaskDef, Use, absolute, begins_with, below, is_dotted
from treadle.contrib.celery.package import Package
from treadle.contrib.celery.results import passed_to_on_commit, plain, renamed, result_of
from treadle.contrib.celery.settings import Settings

NO_COUNTERPART: Final = {
    "apply": ("runs the task in this process: call the function, or use app.testing()", "tests"),
    "chunks": ("one message for many calls: give the task a list, or use @app.batch", "canvas"),
    "map": ("one message for many calls: give the task a list, or use @app.batch", "canvas"),
    "starmap": ("one message for many calls: give the task a list, or use @app.batch", "canvas"),
    "update_state": ("current().report(fraction, text) stores progress", "task-context"),
    "request": ("current() is the running job", "task-context"),
    "run": ("call the task: a call of it is a call of its function", "tests"),
}


class Reference(Struct, frozen=True):
    """A name that leads to Celery, to the Celery app or to a task."""

    module: Module
    node: cst.CSTNode
    name: str  # the whole dotted name, resolved


class Usage(Struct):
    """All of a package."""

    uses: list[Use] = field(default_factory=list)
    references: list[Reference] = field(default_factory=list)


def find(package: Package, settings: Settings, tasks: dict[str, TaskDef]) -> Usage:
    """Every use of the tasks, and every reference to Celery."""
    usage = Usage()
    for module in package.modules.values():
        canvas = Canvas(package, settings, tasks, module)
        started = [canvas.start(node) for node in below(module.tree) if isinstance(node, cst.Call)]
        starts = [use for use in started if use is not None and (use.tasks or use.problems)]
        covered = {node for use in starts for node in use.covers}
        references = _References(package, settings, tasks, module)
        usage.references += references.certain
        usage.uses += starts + references.unclear
        for reference in references.certain:
            task = canvas.task_of(reference.node)
            if task is not None and reference.node not in covered:
                usage.uses.append(_use(settings, tasks, reference, *task))
    return usage


class _References:
    """The longest dotted names that lead to Celery, the app or a task. Imports and definitions are left out.

    unclear  names that may refer to a task or to something else, for example after `try: ... except ImportError:`
    """

    def __init__(self, package: Package, settings: Settings, tasks: dict[str, TaskDef], module: Module) -> None:
        self._package, self._settings, self._tasks, self._module = package, settings, tasks, module
        self.certain: list[Reference] = []
        self.unclear: list[Use] = []
        for node in below(module.tree, without=(cst.Import, cst.ImportFrom)):
            if isinstance(node, cst.Attribute) or (isinstance(node, cst.Name) and self._is_read(node)):
                self._look(node)

    def _is_read(self, node: cst.Name) -> bool:
        """Whether the code reads this name, as opposed to a definition, a keyword, or a part of a known dotted name."""
        above = self._module.parent(node)
        if isinstance(above, cst.Attribute):
            return above.value is node and self._package.resolve(self._module.canonical(above)) is None
        if isinstance(above, cst.FunctionDef | cst.ClassDef | cst.Param):
            return above.name is not node
        return above.keyword is not node if isinstance(above, cst.Arg) else not isinstance(above, cst.AssignTarget)

    def _look(self, node: cst.CSTNode) -> None:
        above = self._module.parent(node)
        if isinstance(above, cst.Attribute) and above.value is node and self._module.canonical(above) is not None:
            return  # part of a longer name
        name = self._package.resolve(self._module.canonical(node))
        if name is None:
            self._add_unclear(node)
        elif (
            f"{name}.".startswith(("celery.", f"{self._settings.app}."))
            or name.startswith("kombu.")
            or begins_with(name, self._tasks)
        ):
            self.certain.append(Reference(self._module, node, name))

    def _add_unclear(self, node: cst.CSTNode) -> None:
        for source in self._module.names.get(node, ()) if is_dotted(node) else ():
            name = self._package.resolve(absolute(source.name, self._module)) or ""
            if (full := begins_with(name, self._tasks)) is not None:
                use = Use(self._module, node, {full})
                use.problem(node, "may be a task or something else", "calls")
                self.unclear.append(use)


def _use(settings: Settings, tasks: dict[str, TaskDef], reference: Reference, full: str, rest: str) -> Use:
    """The use of one task by its name."""
    module, node = reference.module, reference.node
    above = module.parent(node)
    use = Use(module, node, {full}, covers={node})
    called = isinstance(above, cst.Call) and above.func is node
    if rest == "":
        _bare(use, tasks[full], above, called)
    elif rest == "delay":
        _delay(use, above, called)
    elif rest == "apply_async" and called:
        _apply_async(use, settings, above)
    elif rest == "AsyncResult" and called:
        _handle(use, above)
    elif rest == "name":
        pass
    elif rest in SIGNATURES:
        use.problem(node, "a signature outside of a chain, a group or a chord that is started here", CANVAS_SECTION)
    else:
        reason, section = NO_COUNTERPART.get(
            rest.partition(".")[0], (f".{rest} of a task has no counterpart that is certain", "tasks")
        )
        use.problem(node, reason, section)
    return use


def _bare(use: Use, task: TaskDef, above: Any, called: bool) -> None:
    """A call of the function, an alias, or the task as a value."""
    module = use.module
    if called:
        if task.reads:
            use.problem(
                use.node, "a direct call of a task that reads its request: current() works only in a job", "tests"
            )
        return
    line = module.parent(above) if isinstance(above, cst.Assign) and above.value is use.node else None
    alias = line is not None and isinstance(module.parent(line), cst.Module)
    alias = alias and all(isinstance(target.target, cst.Name) for target in above.targets)
    if not alias:
        use.problem(use.node, "the task is used as a value, so what happens to it is not certain", "calls")


def _delay(use: Use, above: Any, called: bool) -> None:
    module, node = use.module, use.node
    if not called:
        if passed_to_on_commit(module, node) and not module.is_async(node):
            use.edits[node] = lambda updated, _: updated.with_changes(attr=cst.Name("enqueue_sync"))
        else:
            use.problem(node, "the method is used as a value, so what happens to its result is not certain", "calls")
        return
    use.edits[above] = _enqueued(above)
    result_of(use, above)


def _enqueued(call: cst.Call) -> Build:
    def build(updated: Any, module: Module) -> cst.CSTNode:
        if module.is_async(call):
            return module.parse(plain(module, call, f"await {module.text(renamed(updated, 'enqueue'))}"))
        return renamed(updated, "enqueue_sync")

    return build


def _apply_async(use: Use, settings: Settings, call: Any) -> None:
    def text(updated: Any) -> str:
        call_parts = parts(updated.args, use.module, settings)
        waits = use.module.is_async(call)
        verb = "enqueue" if waits else "enqueue_sync"
        source = f"{use.module.text(updated.func.value)}{call_parts.bound}.{verb}({call_parts.args})"
        return plain(use.module, call, f"await {source}") if waits else source

    checked(use, call, parts(call.args, use.module, settings), text(call))
    use.edits[call] = lambda updated, module: module.parse(text(updated))
    result_of(use, call)


def _handle(use: Use, call: Any) -> None:
    """`task.AsyncResult(id)`."""
    if len(call.args) != 1 or call.args[0].star or use.module.is_async(call):
        use.problem(call, "this AsyncResult is not certain", "results")
        return
    use.needs.add("app")
    use.edits[call] = lambda updated, module: updated.with_changes(
        func=module.parse(f"{module.wanted['app']}.sync.jobs.handle"),
        args=[updated.args[0].with_changes(keyword=None, equal=cst.MaybeSentinel.DEFAULT)],
    )
    result_of(use, call)
