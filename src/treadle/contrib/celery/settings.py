"""Reads the literal settings of a Celery app, and says what replaces each one in Treadle.

A setting that changes every task and cannot be read stops the whole move: no task would be certain.
"""

from __future__ import annotations

import ast
import fnmatch
from collections.abc import Iterator
from typing import Any, Final

import libcst as cst
from msgspec import Struct, field

from treadle.contrib.celery.model import Finding, Module
from treadle.contrib.celery.package import Package, assignments

CELERY: Final = {"celery.Celery", "celery.app.Celery", "celery.app.base.Celery"}
OLD: Final = {
    "routes": "task_routes",
    "acks_late": "task_acks_late",
    "annotations": "task_annotations",
    "always_eager": "task_always_eager",
    "ignore_result": "task_ignore_result",
    "default_queue": "task_default_queue",
    "default_rate_limit": "task_default_rate_limit",
    "celerybeat_schedule": "beat_schedule",
    "celeryd_max_tasks_per_child": "worker_max_tasks_per_child",
    "celeryd_task_time_limit": "task_time_limit",
    "celeryd_task_soft_time_limit": "task_soft_time_limit",
}
ADVICE: Final = {  # prefix of a setting -> what becomes of it, and the section of the guide
    "broker": ("App() takes its storage from TREADLE_URL", "the-app"),
    "result_backend": ("results are stored with the jobs; there is no other backend", "results"),
    "result_expires": ("rows of ended jobs stay for keep= and keep_failed= seconds", "results"),
    "result": ("results are stored with the jobs, as JSON", "results"),
    "include": ("app.autodiscover(...) imports the task modules", "the-app"),
    "imports": ("app.autodiscover(...) imports the task modules", "the-app"),
    "beat_schedule": ("entries that are left are not certain; see their own lines", "schedules"),
    "beat": ("there is no beat: workers run the schedules", "schedules"),
    "task_routes": ("is applied to moved tasks as queue=", "queues-and-routes"),
    "task_queue": ("a queue exists as soon as a job names it", "queues-and-routes"),
    "task_default_queue": ("the default queue is called default", "queues-and-routes"),
    "task_acks_late": ("is applied to moved tasks", "acknowledgement"),
    "task_reject_on_worker_lost": ("a job whose worker died runs again, up to max_lost= times", "acknowledgement"),
    "task_time_limit": ("is applied to moved tasks as timeout=", "time-limits"),
    "task_always_eager": ("tests use app.testing() or call the function", "tests"),
    "task_eager": ("tests use app.testing() or call the function", "tests"),
    "task_ignore_result": ("results are stored for keep= seconds", "results"),
    "task_serializer": ("arguments and results are JSON", "arguments-and-results"),
    "accept_content": ("arguments and results are JSON", "arguments-and-results"),
    "timezone": ("is applied to moved schedules as tz=", "schedules"),
    "enable_utc": ("is applied to moved schedules as tz=", "schedules"),
    "worker": ("options of `treadle worker`", "workers"),
    "": ("has no counterpart that applies by itself", "what-has-no-counterpart"),
}
OF_WORKERS: Final = {  # settings that became an option of the worker, with their value
    "worker_max_tasks_per_child": "`treadle worker --max-jobs {}` replaces a worker process after so many jobs",
    "worker_max_memory_per_child": "`treadle worker --max-memory {}K` replaces a worker process of that size",
}
CHANGES_TASKS: Final = {  # these change every task, in ways that are not rewritten
    "task_annotations": ("queues-and-routes", None),
    "task_soft_time_limit": ("time-limits", None),
    "task_default_rate_limit": ("rate-limits", None),
    "task_default_priority": ("priorities", None),
    "task_inherit_parent_priority": ("priorities", False),
    "task_serializer": ("arguments-and-results", "json"),
    "task_acks_on_failure_or_timeout": ("acknowledgement", True),
}


class NotLiteral(Exception):
    """An expression whose value is known only when the program runs."""


def literal(node: cst.CSTNode, module: Module) -> Any:
    """The value of a literal. Raises NotLiteral."""
    try:
        return _value(ast.parse(module.text(node).strip(), mode="eval").body)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise NotLiteral(module.code(node)) from None


def _value(node: ast.expr) -> Any:
    """The value of a literal, or of a product such as `30 * 60`. Raises ValueError."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        first, right = _value(node.left), _value(node.right)
        if type(first) not in (int, float) or type(right) not in (int, float):
            raise ValueError("not a product of numbers")
        return first * right
    return ast.literal_eval(node)


class Setting(Struct):
    """Where a setting is given."""

    module: Module
    node: cst.CSTNode  # its value
    name: str

    def value(self) -> Any:
        return literal(self.node, self.module)


class Settings(Struct):
    """The settings of the one Celery app of a package.

    app    its dotted name; None: there is none
    stops  reasons for which no task can be moved
    twice  settings that are set more than once, or under a condition, so that their value is not certain
    """

    app: str | None = None
    values: dict[str, Setting] = field(default_factory=dict)
    stops: list[Finding] = field(default_factory=list)
    twice: set[str] = field(default_factory=set)

    def add(self, setting: Setting) -> None:
        """Note a setting."""
        if setting.name in self.values:
            self.twice.add(setting.name)
        self.values[setting.name] = setting

    def get(self, name: str, default: Any) -> Any:
        """A literal setting; the default if it is not given, or not a literal (which is in `stops`)."""
        if name not in self.values or name in self.twice:
            return default
        try:
            return self.values[name].value()
        except NotLiteral:
            return default

    @property
    def broker(self) -> str:
        """The scheme of the broker's URL; "" if it is not known."""
        url = self.get("broker_url", "")
        return url.partition(":")[0].partition("+")[0] if isinstance(url, str) else ""

    @property
    def tz(self) -> str:
        tz = self.get("timezone", None)
        return tz if isinstance(tz, str) else "UTC"

    def queue_of(self, task: str) -> str | None:
        """The queue that task_routes gives to this task; None: the default. Raises NotLiteral for other routes."""
        routes = self.get("task_routes", {})
        for pattern, route in routes.items() if isinstance(routes, dict) else ():
            if fnmatch.fnmatchcase(task, pattern):
                if isinstance(route, str):
                    return route
                if not isinstance(route, dict) or set(route) - {"queue"}:
                    raise NotLiteral(pattern)
                return route.get("queue")
        return None


def read(package: Package) -> Settings:
    """The settings of the package's Celery app."""
    settings, apps = Settings(), list(_apps(package))
    if not apps:
        return settings
    module, full, call = apps[0]
    settings.app = full
    for other, _, extra in apps[1:]:
        settings.stops.append(other.finding(extra, "left", "is a second Celery app: move one at a time", "the-app"))
    for arg in call.args:
        if arg.keyword is None:
            continue
        name = {"broker": "broker_url", "backend": "result_backend"}.get(arg.keyword.value, arg.keyword.value)
        settings.add(Setting(module, arg.value, name))
        if name == "config_source":
            _configured(package, settings, module, arg.value, "")
    for source in package.modules.values():
        source.tree.visit(_Conf(package, settings, source))
    _stop(settings)
    return settings


def _apps(package: Package) -> Iterator[tuple[Module, str, cst.Call]]:
    for module in package.modules.values():
        for name, value in assignments(module):
            if isinstance(value, cst.Call) and module.canonical(value.func) in CELERY:
                yield module, f"{module.name}.{name}".lstrip("."), value


class _Conf(cst.CSTVisitor):
    """Finds `app.conf.name = value`, `app.conf.update(...)`, `app.config_from_object(...)`."""

    def __init__(self, package: Package, settings: Settings, module: Module) -> None:
        self._package, self._settings, self._module = package, settings, module

    def _rest(self, node: cst.CSTNode) -> str | None:
        """The part of the app that a name reads, such as "conf.timezone"; None for any other name."""
        name = self._package.resolve(self._module.canonical(node))
        app = f"{self._settings.app}."
        return name.removeprefix(app) if name is not None and name.startswith(app) else None

    def _set(self, name: str, value: cst.CSTNode) -> None:
        self._settings.add(Setting(self._module, value, name))
        if not self._module.always(value):
            self._settings.twice.add(name)

    def visit_Assign(self, node: cst.Assign) -> None:
        for target in node.targets:
            rest = self._rest(target.target) or ""
            if rest.startswith("conf.") and rest.count(".") == 1:
                self._set(rest.removeprefix("conf."), node.value)
            elif isinstance(target.target, cst.Subscript) and self._rest(target.target.value) == "conf":
                try:
                    self._set(str(literal(target.target.slice[0].slice, self._module)), node.value)
                except NotLiteral:
                    self._unread(node)
            elif isinstance(target.target, cst.Subscript) and (self._rest(target.target.value) or "").startswith(
                "conf"
            ):
                self._unread(node)

    def visit_Call(self, node: cst.Call) -> None:
        rest = self._rest(node.func)
        if rest == "conf.update":
            self._update(node)
        elif rest == "config_from_object" and node.args:
            space = next((a.value for a in node.args[1:] if a.keyword and a.keyword.value == "namespace"), None)
            try:
                prefix = "" if space is None else str(literal(space, self._module))
            except NotLiteral:
                prefix = "?"
            _configured(self._package, self._settings, self._module, node.args[0].value, prefix)
        elif rest in ("config_from_envvar", "conf.update_from", "config_from_cmdline") or (
            rest is not None and rest.startswith("conf.") and rest.endswith((".update", ".setdefault", ".append"))
        ):
            self._unread(node)

    def _update(self, node: cst.Call) -> None:
        for arg in node.args:
            if arg.keyword is not None:
                self._set(arg.keyword.value, arg.value)
            elif isinstance(arg.value, cst.Dict):
                for element in arg.value.elements:
                    if isinstance(element, cst.DictElement) and isinstance(element.key, cst.SimpleString):
                        self._set(str(element.key.evaluated_value), element.value)
                    else:
                        self._unread(node)
            else:
                self._unread(node)

    def _unread(self, node: cst.CSTNode) -> None:
        reason = "changes settings in a way that cannot be read, so no task is certain"
        self._settings.stops.append(self._module.finding(node, "left", reason, "the-app"))


def _configured(package: Package, settings: Settings, module: Module, value: cst.BaseExpression, prefix: str) -> None:
    """Read the settings of `config_from_object(...)`."""
    try:
        named = str(literal(value, module))
    except NotLiteral:
        named = package.resolve(module.canonical(value)) or ""
    django = named == "django.conf:settings" or named == "django.conf.settings"
    if django:
        sources = [source for source in package.modules.values() if prefix and _has_names(source, f"{prefix}_")]
    else:
        sources = [package.modules[named]] if named in package.modules else []
    if not sources or prefix == "?":
        reason = "reads settings from a place outside of this package, so no task is certain"
        settings.stops.append(module.finding(value, "left", reason, "the-app"))
    for source in sources:
        for target, node in assignments(source):
            name = _setting(target, prefix)
            if name is not None:
                settings.add(Setting(source, node, name))
                if not source.always(node):
                    settings.twice.add(name)


def _setting(target: str, prefix: str) -> str | None:
    """The name of the setting that a variable of the settings module sets; None if it sets none."""
    name = target.lower()
    if prefix:
        if not target.startswith((f"{prefix}_", "CELERYBEAT_")):
            return None
        name = name.removeprefix(f"{prefix.lower()}_")
    else:
        name = name.removeprefix("celery_")
    return None if name.startswith("_") else OLD.get(name, name)


def _has_names(module: Module, prefix: str) -> bool:
    return any(name.startswith(prefix) for name, _ in assignments(module))


def _stop(settings: Settings) -> None:
    """The settings that make every task uncertain."""
    for name, (section, harmless) in CHANGES_TASKS.items():
        if (setting := settings.values.get(name)) is None:
            continue
        try:
            if harmless is not None and setting.value() == harmless:
                continue
        except NotLiteral:
            pass
        reason = f"{name} changes every task, so no task is certain"
        settings.stops.append(setting.module.finding(setting.node, "left", reason, section))
    for name in ("task_routes", "task_acks_late", "task_time_limit", "timezone"):
        if (setting := settings.values.get(name)) is None:
            continue
        try:
            value = object() if name in settings.twice else setting.value()
        except NotLiteral:
            value = object()
        if not isinstance(value, dict if name == "task_routes" else (str, int, float, bool)):
            reason = f"{name} is not given once, as a literal, so no task is certain"
            settings.stops.append(setting.module.finding(setting.node, "left", reason, "queues-and-routes"))


def advice(setting: Setting) -> tuple[str, str]:
    """The advice for a setting and the section of the guide, by the longest prefix that is known."""
    if setting.name in OF_WORKERS:
        try:
            value = setting.value()
        except NotLiteral:
            value = "N"
        if value is not None:  # None means no limit in Celery, as in Treadle
            return OF_WORKERS[setting.name].format(value), "workers"
    return ADVICE[max((prefix for prefix in ADVICE if setting.name.startswith(prefix)), key=len)]
