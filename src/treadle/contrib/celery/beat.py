"""Entries of `beat_schedule`, and the decorators that they become."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import libcst as cst

from treadle.contrib.celery.model import APP_MARK, Module, TaskDef, Use, below
from treadle.contrib.celery.package import Package
from treadle.contrib.celery.settings import NotLiteral, Setting, Settings, literal
from treadle.core.errors import BadOption
from treadle.policy import cron as crons

SECTION: Final = "schedules"
CRONTAB: Final = {"celery.schedules.crontab"}
FIELDS: Final = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
ARGS: Final = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")  # the order of crontab's parameters
DAY: Final = "sun|mon|tue|wed|thu|fri|sat"
MONTH: Final = "jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec"
PART: Final = re.compile(rf"(?:\*|(\d+|{DAY}|{MONTH})(?:-(\d+|{DAY}|{MONTH}))?)(?:/\d+)?")
NAMES: Final = [*DAY.split("|"), *MONTH.split("|")]


def entries(package: Package, settings: Settings, tasks: dict[str, TaskDef]) -> list[Use]:
    """A use for each entry that names a task of the package."""
    setting = settings.values.get("beat_schedule")
    if setting is None or not isinstance(setting.node, cst.Dict):
        return []
    by_name = {task.name: full for full, task in tasks.items()}
    uses = []
    for element in setting.node.elements:
        if isinstance(element, cst.DictElement) and isinstance(element.value, cst.Dict):
            use = _entry(package, settings, by_name, setting, element)
            if use is not None:
                uses.append(use)
    return uses


def _entry(
    package: Package, settings: Settings, by_name: dict[str, str], setting: Setting, element: cst.DictElement
) -> Use | None:
    module = setting.module
    assert isinstance(element.value, cst.Dict)
    fields = dict(_fields(element.value))
    task = _task_of(package, module, fields.get("task"), by_name)
    if task is None:
        return None
    use = Use(module, element, {task})
    use.covers.update(below(element))
    unknown = set(fields) - {"task", "schedule", "args", "kwargs", "options", "relative"}
    try:
        name = literal(element.key, module)
        if (
            unknown
            or literal(fields.get("options", cst.Dict([])), module)
            or literal(fields.get("relative", cst.Name("False")), module)
        ):
            use.problem(element, "options of an entry are not certain: set them on the task", SECTION)
        args, kwargs = _literal_args(use, fields)
    except NotLiteral as error:
        use.problem(element, f"{error} is not a literal", SECTION)
        return use
    timing = _timing(package, settings, use, fields.get("schedule"))
    if timing is not None:
        more = f", args={_source(list(args))}" if args else ""
        more += f", kwargs={_source(kwargs)}" if kwargs else ""
        use.schedule = f"{timing}, name={_source(name)}{more})"
    return use


def _literal_args(use: Use, given: dict[str, cst.BaseExpression]) -> tuple[Any, Any]:
    args = literal(given["args"], use.module) if "args" in given else ()
    kwargs = literal(given["kwargs"], use.module) if "kwargs" in given else {}
    return (args or ()), (kwargs or {})


def _fields(entry: cst.Dict) -> Iterator[tuple[str, cst.BaseExpression]]:
    for element in entry.elements:
        if isinstance(element, cst.DictElement) and isinstance(element.key, cst.SimpleString):
            yield str(element.key.evaluated_value), element.value
        else:
            yield "**", element.value


def _task_of(package: Package, module: Module, node: cst.BaseExpression | None, by_name: dict[str, str]) -> str | None:
    """The task of an entry: by the name of its messages, or as `send.name`."""
    if isinstance(node, cst.SimpleString):
        return by_name.get(str(node.evaluated_value))
    name = package.resolve(module.canonical(node)) if node is not None else None
    full = (name or "").removesuffix(".name")
    return full if full in by_name.values() else None


def _timing(package: Package, settings: Settings, use: Use, node: cst.BaseExpression | None) -> str | None:
    """The decorator without its last parenthesis."""
    module = use.module
    if isinstance(node, cst.Integer | cst.Float):
        return f"{APP_MARK}.every({module.text(node)}"
    called = package.resolve(module.canonical(node.func)) if isinstance(node, cst.Call) else None
    try:
        if called in CRONTAB:
            return _crontab(settings, use, node)
        if called == "datetime.timedelta":
            return f"{APP_MARK}.every({_seconds(module, node):g}"
    except (NotLiteral, TypeError, OverflowError, ValueError):
        pass
    use.problem(
        node or use.node, "this schedule is not a crontab(), a timedelta() or a number that can be read", SECTION
    )
    return None


def _seconds(module: Module, call: Any) -> float:
    from datetime import timedelta

    args = [literal(arg.value, module) for arg in call.args if arg.keyword is None]
    named = {arg.keyword.value: literal(arg.value, module) for arg in call.args if arg.keyword is not None}
    seconds = timedelta(*args, **named).total_seconds()
    if seconds < crons.LEAST_EVERY:
        raise ValueError(seconds)
    return seconds


def _crontab(settings: Settings, use: Use, call: Any) -> str | None:
    module, texts = use.module, dict[str, str]()
    for number, arg in enumerate(call.args):
        name = ARGS[number] if arg.keyword is None else arg.keyword.value
        value = literal(arg.value, module)
        if name not in ARGS or not isinstance(value, str | int):
            use.problem(call, "this crontab() has arguments that are not certain", SECTION)
            return None
        texts[name] = str(value).replace(" ", "").lower()
    fields = [texts.get(name, "*") for name in FIELDS]
    if fields[2] != "*" and fields[4] != "*":
        reason = "a day of the month and a weekday: Celery needs both, a cron line needs either"
        use.problem(call, reason, SECTION)
        return None
    try:
        if not all(_same(field) for field in fields):
            raise BadOption("cron", "ranges that wrap")
        line = crons.cron(" ".join(fields), settings.tz).line
    except BadOption:
        use.problem(call, "a cron line of the same times is not certain", SECTION)
        return None
    zone = "" if settings.tz == "UTC" else f", tz={_source(settings.tz)}"
    if settings.get("enable_utc", True) is not True:
        use.problem(call, "enable_utc is not true, so the time zone is not certain", SECTION)
        return None
    return f'{APP_MARK}.cron("{line}"{zone}'


def _same(text: str) -> bool:
    """Whether Celery and a cron line read a field in the same way: lists, steps and ranges that do not wrap."""
    for part in text.split(","):
        match = PART.fullmatch(part)
        if match is None:
            return False
        first, last = match[1], match[2]
        if last is not None and _number(first) > _number(last):
            return False
        if first is not None and last is None and "/" in part:
            return False
    return True


def _number(text: str) -> int:
    if text.isdigit():
        return int(text)
    return NAMES.index(text) if text in NAMES[:7] else NAMES.index(text) - 6


def _source(value: object) -> str:
    """A literal as source text, in double quotes if its text needs no escapes."""
    text = repr(value)
    return text if '"' in text or "\\" in text else text.replace("'", '"')
