"""The call that a test expects to have been enqueued, and how an enqueued call differs from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import asdict

from treadle.core.errors import BadOption
from treadle.core.injected import call_signature
from treadle.core.job import JobSpec
from treadle.core.model import NewJob, Record
from treadle.tasks.stub import Stub
from treadle.tasks.task import Task
from treadle.testing.codec_check import same, short

if TYPE_CHECKING:
    from treadle.app.core import AppCore

SHOWN = 5  # calls in a message
# fields that follow from the arguments, from chance or from the enqueuing job; all other fields are options
NO_OPTIONS: Final = frozenset({"id", "task", "payload", "root", "parent", "function_done", "reach", "nonce"})
What = Task[..., Any, Any] | Stub | JobSpec[Any, Any]
Read = Callable[[NewJob], tuple[tuple[Any, ...], dict[str, Any]]]


class Call(Struct, frozen=True):
    """An enqueued job: the arguments of its function, and the row with all options and its state."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    record: Record


def _spec_of(what: What, args: Sequence[Any], kwargs: Mapping[str, Any]) -> JobSpec[Any, Any] | None:
    """The spec of the expected call; None: any call of the task."""
    if isinstance(what, JobSpec):
        if args or kwargs:
            raise BadOption("arguments", "a spec has its arguments already: give them to job(...)")
        return what
    if not isinstance(what, Task | Stub):
        raise BadOption("what", f"expected a task, a stub (app.stub(name)) or a spec (task.job(...)), found {what!r}")
    return what.job(*args, **kwargs) if args or kwargs else None


class Expected:
    """An expected call of a task: any call, one with given arguments, or one that matches a spec.

    task     name of the task
    call     arguments by parameter; None: any
    options  the options that the spec sets
    """

    def __init__(self, core: AppCore, what: What, args: Sequence[Any], kwargs: Mapping[str, Any], read: Read) -> None:
        spec = _spec_of(what, args, kwargs)
        self.task: str = what.new.task if isinstance(what, JobSpec) else what.name
        task = core.tasks.get(self.task)
        self._parameters = None if task is None else call_signature(task.signature._function)
        self.call: dict[str, Any] | None = None
        self.options: dict[str, Any] = {}
        if spec is not None:
            call = read(spec.new)
            self.call, usual = self._bound(*call), asdict(self._plain(core, *call))
            options = (option for option in asdict(spec.new).items() if option[0] not in NO_OPTIONS)
            self.options = {name: value for name, value in options if value != usual[name]}
            if spec.new.nonce is not None:
                self.options["id"] = spec.new.id

    def _plain(self, core: AppCore, args: Sequence[Any], kwargs: Mapping[str, Any]) -> NewJob:
        """The same call without options."""
        task: Any = core.declared.get(self.task) or core.stub(self.task)
        spec: JobSpec[Any, Any] = task.job(*args, **kwargs)
        return spec.new

    def _bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by parameter, with defaults filled in."""
        if self._parameters is not None:
            try:
                bound = self._parameters.bind_partial(*args, **kwargs)
            except TypeError:
                pass  # enqueued by another version of the function
            else:
                bound.apply_defaults()
                return dict(bound.arguments)
        return {**{str(number): value for number, value in enumerate(args)}, **kwargs}

    def differences(self, call: Call) -> list[str]:
        """How this call differs from the expected one. Empty if it does not."""
        differences: list[str] = []
        if self.call is not None:
            has = self._bound(call.args, call.kwargs)
            for name in dict.fromkeys((*self.call, *has)):
                if name not in has:
                    differences.append(f"{name}: expected {short(self.call[name])}, found none")
                elif name not in self.call:
                    differences.append(f"{name}: expected none, found {short(has[name])}")
                elif not same(self.call[name], has[name]):
                    differences.append(f"{name}: expected {short(self.call[name])}, found {short(has[name])}")
        for name, value in self.options.items():
            has_it = getattr(call.record.job, name)
            if value != has_it:
                differences.append(f"option {name}: expected {short(value)}, found {short(has_it)}")
        return differences

    def __str__(self) -> str:
        named = "..." if self.call is None else ", ".join(f"{name}={short(value)}" for name, value in self.call.items())
        options = "".join(f", {name}={short(value)}" for name, value in self.options.items())
        return f"{self.task}({named}){' with' + options[1:] if options else ''}"


def missing(expected: Expected, calls: Sequence[Call], others: Mapping[str, int]) -> str:
    """The message if no call is the expected one: the calls of its task, nearest first, and how each differs.

    others  number of jobs of each task
    """
    lines = [f"{expected} was not enqueued"]
    if not calls:
        there = ", ".join(f"{name} ({count})" for name, count in sorted(others.items()))
        return f"{lines[0]}, and no other call of {expected.task}; enqueued were: {there or 'no jobs'}"
    by_nearness = sorted(calls, key=lambda call: len(expected.differences(call)))
    lines[0] += f"; the calls of {expected.task}, nearest first:"
    for call in by_nearness[:SHOWN]:
        lines.append(f"  {call.record.id} ({call.record.state}):")
        lines += [f"    {difference}" for difference in expected.differences(call)]
    if len(calls) > SHOWN:
        lines.append(f"  and {len(calls) - SHOWN} more")
    return "\n".join(lines)


def unexpected(expected: Expected, calls: Sequence[Call]) -> str:
    """The message if there are calls that should not exist."""
    ids = ", ".join(call.record.id for call in calls[:SHOWN])
    more = f" and {len(calls) - SHOWN} more" if len(calls) > SHOWN else ""
    return f"{expected} was enqueued: {ids}{more}"
