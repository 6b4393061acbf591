"""Lists the lines that stay after the move: every line that leads to Celery, with its reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import libcst as cst

from treadle.contrib.celery.model import Finding, Module, TaskDef, Use, begins_with, below
from treadle.contrib.celery.package import Package, local_names, statements
from treadle.contrib.celery.settings import Settings, advice
from treadle.contrib.celery.uses import Reference, Usage

CELERY: Final = {  # prefix of a name of Celery -> what becomes of it, and the section of the guide
    "celery.signals": ("a signal becomes an event, a middleware or a lifespan", "signals"),
    "celery.exceptions": ("Celery's exceptions are not raised by Treadle", "retries"),
    "celery.result": ("app.jobs.handle(id) is the handle of a job", "results"),
    "celery.schedules": ("@app.cron and @app.every", "schedules"),
    "celery.Task": ("a task class has no counterpart: use middleware, on_error= or a lifespan", "task-classes"),
    "celery.current_task": ("current() is the running job", "task-context"),
    "celery._state": ("current() is the running job", "task-context"),
    "celery.Celery": ("stays until the old workers are empty; delete it then", "side-by-side"),
    "celery.shared_task": ("its task stays with Celery", "what-stays"),
    "celery.utils": ("logging.getLogger(__name__) does the same", "monitoring"),
    "celery.chunks": ("one message for many calls: give the task a list, or use @app.batch", "canvas"),
    "celery": ("is Celery's", "what-stays"),
    "kombu": ("queues need no declaration", "queues-and-routes"),
}
PACKAGES: Final = {"celery", "kombu", "django_celery_beat", "django_celery_results"}
APP: Final = {
    "conf": ("see the setting", "the-app"),
    "send_task": ("app.stub(name) enqueues by name", "calls"),
    "autodiscover_tasks": ("app.autodiscover(...) in the module of the app", "the-app"),
    "control": ("`treadle jobs cancel`, `treadle queues pause` and app.jobs", "monitoring"),
    "AsyncResult": ("app.jobs.handle(id) is the handle of a job", "results"),
    "current_task": ("current() is the running job", "task-context"),
    "on_after_configure": ("declare schedules with @app.cron and @app.every", "schedules"),
    "add_periodic_task": ("declare schedules with @app.cron and @app.every", "schedules"),
    "Task": ("a task class has no counterpart: use middleware, on_error= or a lifespan", "task-classes"),
    "task": ("its task stays with Celery", "what-stays"),
    "": ("stays until the old workers are empty; delete it then", "side-by-side"),
}


def references(
    package: Package, settings: Settings, usage: Usage, gone: set[cst.CSTNode], leaves: dict[str, set[str]]
) -> Iterator[Finding]:
    """A finding for each line that still leads to Celery. `leaves`: by module, the imports that are removed."""
    for name, setting in settings.values.items():
        reason, section = advice(setting)
        yield setting.module.finding(setting.node, "left", f"setting {name}: {reason}", section)
    for reference in usage.references:
        if reference.node in gone:
            continue
        known = _reason(settings, reference)
        if known is not None:
            yield reference.module.finding(_statement(reference.module, reference.node), "left", *known)
    for module in package.modules.values():
        for statement in statements(module.tree):
            names = set(of_celery(package, settings, module, statement)) - leaves.get(module.name, set())
            if names:
                yield module.finding(statement, "left", f"imports {', '.join(sorted(names))} of Celery", "what-stays")
    yield from _unknown_calls(package, usage, settings.app is None)


def inside_tasks(settings: Settings, tasks: dict[str, TaskDef], usage: Usage) -> None:
    """Add a problem to each task whose function raises or catches exceptions of Celery, or reads `current_task`, which
    works only in a worker of Celery."""
    functions = {task.function: task for task in tasks.values()}
    within = ("celery.exceptions.", "celery.current_task.", "celery._state.", f"{settings.app}.current_task.")
    for reference in usage.references:
        if not f"{reference.name}.".startswith(within):
            continue
        module, known = reference.module, _reason(settings, reference)
        for above in module.above(reference.node):
            if isinstance(above, cst.FunctionDef) and above in functions and known is not None:
                functions[above].problem(_statement(module, reference.node), *known)
                break


def _statement(module: Module, node: cst.CSTNode) -> cst.CSTNode:
    """The call or the assignment around a name, as the report shows it."""
    above = module.parent(node)
    return above if isinstance(above, cst.Call | cst.Attribute | cst.Decorator) else node


def _reason(settings: Settings, reference: Reference) -> tuple[str, str] | None:
    app = settings.app
    if app is not None and f"{reference.name}.".startswith(f"{app}."):
        rest = reference.name.removeprefix(app).lstrip(".")
        if rest.startswith("conf."):
            return None  # reported with its value
        return next(known for prefix, known in APP.items() if rest.startswith(prefix))
    if reference.name.startswith(("celery", "kombu")):
        return next(known for prefix, known in CELERY.items() if reference.name.startswith(prefix))
    return None  # a task: its use is reported


def _unknown_calls(package: Package, usage: Usage, decorators: bool) -> Iterator[Finding]:
    """Calls of `.delay` and `.apply_async` on something that is not known to be a task. `decorators`: also those of
    `@....task`, because it is not known which ones are Celery's."""
    known: set[cst.CSTNode] = set()
    for use in usage.uses:
        above = use.module.parent(use.node)
        known |= {use.node, *([above] if above is not None else [])}
    for module in package.modules.values():
        for node in below(module.tree):
            if isinstance(node, cst.Call) and node not in known and _name(node.func) in ("delay", "apply_async"):
                reason = "is not known to be a call of a task, so it is not changed"
                yield module.finding(node, "left", reason, "calls")
            elif decorators and isinstance(node, cst.Decorator):
                called = node.decorator.func if isinstance(node.decorator, cst.Call) else node.decorator
                if _name(called) == "task":
                    yield module.finding(node, "left", "may make a task of Celery; the app is not known", "tasks")


def _name(node: cst.CSTNode) -> str | None:
    """The name after the last dot; None: there is no dot."""
    return node.attr.value if isinstance(node, cst.Attribute) else None


def named_in_strings(
    package: Package, settings: Settings, tasks: dict[str, TaskDef], ours: set[cst.CSTNode]
) -> list[Use]:
    """A use for each string with the name of a task: a message may be sent under it, or a test may replace it."""
    names = {name: full for full, task in tasks.items() for name in (task.name, full) if "@" not in name}
    known = ours | {node for task in tasks.values() for node in below(task.decorator)}
    if (routes := settings.values.get("task_routes")) is not None:
        known.update(below(routes.node))
    uses = []
    for module in package.modules.values():
        for node in below(module.tree):
            text = node.evaluated_value if isinstance(node, cst.SimpleString) and node not in known else None
            if isinstance(text, str) and (name := begins_with(text, names)) is not None:
                use = Use(module, node, {names[name]})
                use.problem(node, "names a task in a text, so what happens with it is not certain", "calls")
                uses.append(use)
    return uses


def star_imports(package: Package, tasks: dict[str, TaskDef]) -> list[Use]:
    """A use for each `from module import *` of a module with tasks, whose names cannot be followed."""
    uses = []
    for module, statement, source in package.stars:
        inside = {full for full in tasks if full.rpartition(".")[0] == source}
        if inside:
            use = Use(module, statement, inside)
            use.problem(statement, "imports tasks with *, so their uses cannot be followed", "calls")
            uses.append(use)
    return uses


def clashes(package: Package, tasks: dict[str, TaskDef]) -> set[str]:
    """The tasks that share a name with something else, such as after `mail = send` and `mail = other`."""
    return {full for full in tasks if full in {package.resolve(name) for name in package.clashes}}


def leaving(package: Package, settings: Settings, module: Module, usage: Usage, gone: set[cst.CSTNode]) -> set[str]:
    """The names imported from Celery, or the Celery app's, that nothing in this module uses after the edits.

    gone  the nodes that the edits replace
    """
    if module.is_package:
        return set()
    uses: dict[str, list[bool]] = {}
    for reference in usage.references:
        if reference.module is module:
            uses.setdefault(_root(reference.node), []).append(reference.node in gone)
    return {
        name
        for statement in module.tree.body
        if isinstance(statement, cst.SimpleStatementLine)
        for small in statement.body
        for name in of_celery(package, settings, module, small)
        if isinstance(small, cst.ImportFrom) and uses.get(name) and all(uses[name])
    }


def of_celery(package: Package, settings: Settings, module: Module, statement: cst.BaseSmallStatement) -> list[str]:
    """The names that this import takes from Celery, or that refer to the Celery app."""
    if isinstance(statement, cst.Import):
        names = [(alias.evaluated_alias or alias.evaluated_name, alias.evaluated_name) for alias in statement.names]
    elif isinstance(statement, cst.ImportFrom) and not isinstance(statement.names, cst.ImportStar):
        names = [(name, package.resolve(f"{module.name}.{name}".lstrip(".")) or "") for name in local_names(statement)]
    elif isinstance(statement, cst.ImportFrom):
        text = module.code(statement)
        names = [("*", "celery")] if text.startswith(("from celery", "from kombu")) else []
    else:
        names = []
    return [name for name, full in names if full == settings.app or full.partition(".")[0] in PACKAGES]


def _root(node: cst.CSTNode) -> str:
    while isinstance(node, cst.Attribute):
        node = node.value
    return node.value if isinstance(node, cst.Name) else ""
