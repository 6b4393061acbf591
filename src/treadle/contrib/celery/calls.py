"""Turns the arguments of `apply_async` and `signature` into arguments of `options(...)` and of the call itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import libcst as cst
from msgspec import Struct, field

from treadle.contrib.celery.decorators import priority
from treadle.contrib.celery.model import Module, Use, below
from treadle.contrib.celery.settings import NotLiteral, Settings, literal

SECTION: Final = "options-of-a-call"
RENAMED: Final = {"countdown": "delay", "eta": "run_at", "queue": "queue", "task_id": "id", "time_limit": "timeout"}
DIFFERS: Final = {
    "task_id": "Celery runs a repeated id again; Treadle returns the job that has it, or raises IdTaken",
    "queue": "a worker serves the queues of its tasks; if no task names this one, start it with -q",
    "eta": "a time without a zone is refused in Treadle",
    "expires": "was the time to start by; it now is the time to have ended by",
    "time_limit": 'a thread is not killed at its timeout; with kind="process" it is',
}
NO_COUNTERPART: Final = {
    "link": ("a callback becomes a chain, or a job with after=", "canvas"),
    "link_error": ("a job with after= and when=all_done() looks at upstream()", "canvas"),
    "soft_time_limit": ("a function cannot be interrupted by an exception in Treadle", "time-limits"),
    "routing_key": ("there are queues only", "queues-and-routes"),
    "exchange": ("there are queues only", "queues-and-routes"),
    "serializer": ("arguments and results are JSON", "arguments-and-results"),
}


class Parts(Struct):
    """The arguments of a call in Treadle's form, as source."""

    arguments: list[str] = field(default_factory=list)
    head: str = ""  # positional arguments over several lines, with their comments and a comma at the end
    options: list[str] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def args(self) -> str:
        """The arguments of the task."""
        return self.head + ", ".join(self.arguments)

    @property
    def bound(self) -> str:
        """`.options(...)`, where there are options."""
        return f".options({', '.join(self.options)})" if self.options else ""


def parts(args: Sequence[cst.Arg], module: Module, settings: Settings) -> Parts:
    """The parts of `apply_async(args, kwargs, **options)`."""
    call_parts, order = Parts(), ["args", "kwargs"]
    named: dict[str, cst.BaseExpression] = {}
    for number, arg in enumerate(args):
        if arg.star or (arg.keyword is None and number > 1):
            call_parts.problems.append(("its arguments are not written out", SECTION))
            return call_parts
        named[order[number] if arg.keyword is None else arg.keyword.value] = arg.value
    if (node := named.pop("args", None)) is not None:
        _positional(call_parts, node, module)
    if (node := named.pop("kwargs", None)) is not None:
        _keywords(call_parts, node, module)
    for name, value in named.items():
        _option(call_parts, name, value, module, settings)
    return call_parts


def _positional(call_parts: Parts, node: cst.BaseExpression, module: Module) -> None:
    if isinstance(node, cst.Tuple | cst.List):
        last = node.elements[-1] if node.elements else None
        if last is None:
            return
        if "\n" in module.text(node) and (not isinstance(node, cst.Tuple) or node.lpar):
            if isinstance(last.comma, cst.MaybeSentinel):
                last = last.with_changes(comma=cst.Comma())
            whole = node.with_changes(elements=[*node.elements[:-1], last])
            call_parts.head = module.text(whole).strip()[1:-1]
            return
        text = module.text(node).strip()
        inner = text[1:-1] if text[:1] in "([" else text
        call_parts.arguments.append(inner.strip().removesuffix(","))
    elif not _is_none(node):
        call_parts.arguments.append(f"*{module.text(node)}")


def _keywords(call_parts: Parts, node: cst.BaseExpression, module: Module) -> None:
    if not isinstance(node, cst.Dict):
        if not _is_none(node):
            call_parts.arguments.append(f"**{module.text(node)}")
        return
    for element in node.elements:
        if isinstance(element, cst.StarredDictElement):
            call_parts.arguments.append(f"**{module.text(element.value)}")
            continue
        key = element.key if isinstance(element, cst.DictElement) else None
        name = key.evaluated_value if isinstance(key, cst.SimpleString) else None
        if not isinstance(name, str) or not name.isidentifier():
            call_parts.problems.append(("the keys of kwargs are not names", SECTION))
            return
        call_parts.arguments.append(f"{name}={module.text(element.value)}")


def _is_none(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Name) and node.value == "None"


def _option(call_parts: Parts, name: str, value: cst.BaseExpression, module: Module, settings: Settings) -> None:
    text = module.text(value)
    if _is_none(value) or (name == "retry" and text == "True"):
        return  # dropped: None means that the option is not given
    if name in DIFFERS:
        call_parts.notes.append(f"{name}: {DIFFERS[name]}")
    if name in RENAMED:
        call_parts.options.append(f"{RENAMED[name]}={text}")
    elif name == "expires" and isinstance(value, cst.Integer | cst.Float):
        call_parts.options.append(f"expires={text}")
    elif name == "priority":
        try:
            turned = priority(settings, literal(value, module))
        except NotLiteral:
            turned = None
        if turned is None:
            call_parts.problems.append(("its priority, or the direction of priorities, is not known", "priorities"))
        else:
            call_parts.options.append(f"priority={turned}")
    else:
        known = NO_COUNTERPART.get(name, (f"{name}= has no counterpart that is certain", SECTION))
        call_parts.problems.append((f"{name}=: {known[0]}" if name in NO_COUNTERPART else known[0], known[1]))


def checked(use: Use, call: cst.Call, call_parts: Parts, source: str) -> None:
    """Note the problems of a call, and comments that its new form would lose."""
    for reason, section in call_parts.problems:
        use.problem(call, reason, section)
    for reason in call_parts.notes:
        use.note(call, reason, SECTION)
    if any(isinstance(node, cst.Comment) and node.value not in source for node in below(call)):
        use.problem(call, "a comment inside the call would be lost", SECTION)
