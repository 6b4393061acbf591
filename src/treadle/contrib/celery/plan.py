"""Decides what moves: a task with all of its uses, or nothing of it.

If a task stays, its uses stay, and so do the other tasks of the same chain or group.
The program that results runs: what moved runs on Treadle, what stayed runs on Celery as before.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import libcst as cst
from msgspec import Struct, field

from treadle.contrib.celery import beat, decorators, imports, left, loops, settings, uses
from treadle.contrib.celery.model import Finding, TaskDef, Use, below
from treadle.contrib.celery.package import Package, assignments
from treadle.contrib.celery.rewrite import rewritten

APP: Final = '''"""The Treadle app of {package}. Its jobs are stored where TREADLE_URL says."""

from treadle import App, Retry

app = App(retry=Retry(attempts=1))  # as in Celery, a task that says nothing of retries has none
app.autodiscover({modules})
'''


class Plan(Struct):
    """The changes of a run, and its report.

    files     new contents, by path
    findings  the lines of the report, in order
    moved     names of the tasks that move
    stayed    names of the tasks that stay
    """

    files: dict[Path, bytes] = field(default_factory=dict)
    before: dict[Path, bytes] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    stayed: list[str] = field(default_factory=list)
    app: str = ""


def plan(path: Path) -> Plan:
    """Read a package, and plan its move. Changes nothing. Raises OSError."""
    package = Package(path)
    config = settings.read(package)
    _check_app(package, config)
    tasks = decorators.tasks(package, config)
    usage = uses.find(package, config, tasks)
    usage.uses += beat.entries(package, config, tasks)
    beats = {node for use in usage.uses if isinstance(use.node, cst.DictElement) for node in use.covers}
    usage.uses = [use for use in usage.uses if use.node not in beats or isinstance(use.node, cst.DictElement)]
    usage.uses += left.named_in_strings(package, config, tasks, beats)
    usage.uses += left.star_imports(package, tasks)
    left.inside_tasks(config, tasks, usage)
    loops.refuse(package, usage.uses)
    for full in left.clashes(package, tasks):
        task = tasks[full]
        task.problem(task.decorator, "has a name that is given to something else, too", "calls")
    stays = _stays(config, tasks, usage.uses)
    moving = {full: task for full, task in tasks.items() if full not in stays}
    going = [use for use in usage.uses if use.tasks and not use.problems and not use.tasks & stays]
    gone = {node for task in moving.values() for node in below(task.decorator)}
    gone |= {node for use in going for node in use.covers}
    gone |= {node for task in moving.values() for edited in task.edits for node in below(edited)}
    leaves = {module.name: left.leaving(package, config, module, usage, gone) for module in package.modules.values()}
    move = Plan(
        moved=sorted(task.name for task in moving.values()),
        stayed=sorted(task.name for full, task in tasks.items() if full in stays),
        app=".".join(part for part in (package.name, imports.APP_MODULE) if part),
    )
    explained = gone | {node for use in usage.uses for node in use.covers}
    move.findings += [*package.findings, *config.stops, *left.references(package, config, usage, explained, leaves)]
    _report(move, tasks, usage, stays, going)
    if moving:
        _write(move, package, moving, going, leaves)
    move.findings = sorted(set(move.findings))
    return move


def _check_app(package: Package, config: settings.Settings) -> None:
    """Stop if there is no Celery app, so its settings are not known, or if our module is another one."""
    if config.app is None:
        reason = "no Celery(...) is assigned to a name at the top level of this package, so no task is certain"
        config.stops.append(Finding(package.path.as_posix(), 0, "left", "", reason, "the-app"))
    name = ".".join(part for part in (package.name, imports.APP_MODULE) if part)
    ours = package.modules.get(name)
    if ours is not None and "app" not in dict(assignments(ours)):
        reason = "exists and assigns no `app`: rename it, or define the Treadle app there"
        config.stops.append(Finding(ours.shown, 0, "left", "", reason, "the-app"))


def _stays(config: settings.Settings, tasks: dict[str, TaskDef], all_uses: list[Use]) -> set[str]:
    """The tasks that cannot be moved, because they or their uses have a problem."""
    if config.stops or config.app is None:
        return set(tasks)
    stays = {full for full, task in tasks.items() if task.problems}
    names = [task.name for task in tasks.values()]
    stays |= {full for full, task in tasks.items() if names.count(task.name) > 1}
    while True:
        more = {
            full for use in all_uses if use.problems or use.tasks & stays for full in use.tasks if full not in stays
        }
        if not more:
            return stays
        stays |= more


def _report(move: Plan, tasks: dict[str, TaskDef], usage: uses.Usage, stays: set[str], going: list[Use]) -> None:
    """Every task and every use of one: rewritten, or left and why."""
    for full, task in tasks.items():
        if full in stays:
            move.findings += task.problems
        else:
            move.findings += task.notes
            move.findings.append(task.module.finding(task.decorator, "rewritten", f"task {task.name}", "tasks"))
    for use in usage.uses:
        if use in going:
            move.findings += use.notes
            if use.edits or use.schedule:
                move.findings.append(
                    use.module.finding(use.whole_node, "rewritten", f"uses {_names(use.tasks)}", "calls")
                )
        else:
            move.findings += use.problems
            here = use.module.line(use.whole_node)
            if here not in [problem.line for problem in use.problems]:
                reason = f"uses {_names(use.tasks & stays)}, which stays with Celery"
                move.findings.append(use.module.finding(use.whole_node, "left", reason, "what-stays"))


def _names(tasks: set[str]) -> str:
    return ", ".join(sorted(task.partition("@")[0] for task in tasks))


def _write(
    move: Plan, package: Package, moving: dict[str, TaskDef], going: list[Use], leaves: dict[str, set[str]]
) -> None:
    """Compute the new contents of all files that change, and of the module of the app."""
    for use in going:
        if use.schedule is not None:
            (full,) = use.tasks
            moving[full].above.append(use.schedule)
    app = f"{move.app}.app"
    for module in package.modules.values():
        mine = [task for task in moving.values() if task.module is module]
        here = [use for use in going if use.module is module]
        needs = _needs(mine, here)
        if not mine and not any(use.edits or use.schedule for use in here):
            continue
        imports.choose(module, package, app, needs, leaves[module.name])
        new = rewritten(module, mine, here, app, leaves[module.name])
        if new != module.raw:
            move.files[module.path], move.before[module.path] = new, module.raw
    place = package.folder / f"{imports.APP_MODULE}.py"
    names = sorted({task.module.name for task in moving.values()})
    old = package.modules.get(move.app)
    if old is None:
        text = APP.format(package=package.name or package.folder.absolute().name, modules=_quoted(names))
        move.files[place], move.before[place] = text.encode(), b""
    elif missing := [name for name in names if f'"{name}"' not in old.tree.code]:
        end = old.tree.default_newline
        more = f"app.autodiscover({_quoted(missing)}){end}".encode(old.tree.encoding)
        move.files[place], move.before[place] = old.raw + more, old.raw


def _quoted(names: list[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _needs(tasks: list[TaskDef], here: list[Use]) -> set[str]:
    needs: set[str] = set()
    for task in tasks:
        needs |= {"app", *(f"treadle.{name}" for name in task.imports)}
        if task.reads:
            needs.add("treadle.current")
    for use in here:
        needs |= use.needs
    return needs
