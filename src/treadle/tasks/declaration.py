"""A task as its decorator declares it, checked.

A `Declaration` does not know the app: `TaskCore` adds what the app decides.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar, Literal

from msgspec import Struct

from treadle.core import defaults
from treadle.core.errors import BadOption, BadTask
from treadle.core.placement import Amounts, Needs, Requires, needs_of
from treadle.core.ranges import COUNT
from treadle.policy.judge import OnError
from treadle.serialization.call_codec import Codec
from treadle.tasks.batch_function import item_function
from treadle.tasks.options import NAMES, Options, check_names, name_of

Kind = Literal["async", "thread", "process"]
Computed = Callable[..., Options]


class BatchOptions(Options, total=False):
    """The options of `@app.batch`: those of its jobs, and those of the task itself."""

    name: str | None
    kind: Kind | None
    on_error: OnError | None
    options: Computed | None
    codec: Codec | None
    redact: Sequence[str]
    requires: Requires
    uses: Amounts | None


class TaskOptions(BatchOptions, total=False):
    """The options of `@app.task`."""

    concurrency: int | None
    version: int


class Declaration(Struct, frozen=True, kw_only=True):
    """The function of a task and the arguments of its decorator. Raises BadTask and BadOption.

    constants  the options that all its jobs have
    requires   labels of the workers that may run its jobs
    uses       resources of the worker that each run uses
    redact     names of more values of its jobs that people must not see
    version    distinguishes functions of one name: a durable job keeps to the one that it began with
    computed   a function of a job's arguments that returns more options
    """

    # arguments of the decorator that are not options of jobs
    words: ClassVar[frozenset[str]] = frozenset({*TaskOptions.__annotations__, "reduce"}) - NAMES

    name: str
    function: Callable[..., Any]
    kind: Kind | None = None
    constants: Options
    computed: Computed | None = None
    on_error: OnError | None = None
    codec: Codec | None = None
    redact: Sequence[str] = ()
    requires: Requires = ()
    uses: Amounts | None = None
    reduce: str | None = None
    version: int = 1

    def __post_init__(self) -> None:
        check_names(self.constants, self.words)
        names_to_hide(self.redact)
        name = self.name
        if " " in name_of(name, "name") or name.startswith("treadle."):
            raise BadTask(f"expected a task name without spaces that does not begin with 'treadle.', found {name!r}")
        for once in ("id", "after", "run_at", "within"):
            if once in self.constants:
                raise BadOption(once, "belongs to one job, not to a task; give it with .options()")
        version: object = self.version
        if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version <= COUNT:
            raise BadOption("version", f"expected a number from 1, found {version!r:.60}")
        if version != 1 and self.kind == "process":
            raise BadTask(f'{name}: kind="process" takes no steps, so it has no versions; give it a new name')
        _check_function(name, self.function, self.kind)
        _check_kind(name, self.function, self.runs_as)
        needs_of(name, self.requires, self.uses)

    @property
    def needs(self) -> Needs | None:
        """The labels and resources that it needs of a worker; None: it needs nothing."""
        return needs_of(self.name, self.requires, self.uses)

    @property
    def runs_as(self) -> Kind:
        """The kind that was passed, or the kind that the function needs."""
        return self.kind or ("async" if _is_async(self.function) else "thread")

    @property
    def of_one_job(self) -> Callable[..., Any]:
        """A function whose annotations describe the arguments and the result of one job."""
        return self.function


class BatchDeclaration(Declaration, frozen=True, kw_only=True):
    """A task whose function takes many items. `max_wait` in seconds."""

    words = frozenset({*BatchOptions.__annotations__, "size", "max_wait", "by"}) - NAMES

    size: int
    max_wait: float
    by: Callable[[Any], Hashable] | None = None

    def __post_init__(self) -> None:
        if self.kind == "process":
            raise BadTask(
                f'{self.name}: a batch cannot have kind="process", because its items are jobs with their own timeouts, '
                "and a process could only be killed for all of them; call a process pool from the function"
            )
        most: object = self.size
        if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= defaults.CLAIM_MOST:
            raise BadOption("size", f"expected 1 to {defaults.CLAIM_MOST} items, found {most!r}")
        by: object = self.by
        if by is not None and not callable(by):
            raise BadOption("by", f"expected a function from an item to a key, found {by!r}")
        super().__post_init__()

    @property
    def of_one_job(self) -> Callable[..., Any]:
        """See `Declaration.of_one_job`; a job is one item. Raises BadTask if the function cannot be a batch."""
        return item_function(self.name, self.function)


def names_to_hide(names: Sequence[str]) -> tuple[str, ...]:
    """The names of `redact=`, checked. Raises BadOption."""
    given_names: object = names
    if isinstance(given_names, str) or not isinstance(given_names, (list, tuple, set, frozenset)):
        raise BadOption("redact", f'expected names such as ["iban", "card.number"], found {given_names!r}')
    for name in given_names:
        if not isinstance(name, str) or not name or not all(name.split(".")):
            raise BadOption("redact", f'expected names such as "iban" or "card.number", found {name!r}')
    return tuple(given_names)


def _is_async(function: Callable[..., object]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def _check_function(name: str, function: object, kind: str | None) -> None:
    """Raise BadTask for a function that no stored job can call, with what to write in its place."""
    if isinstance(function, classmethod | functools.partialmethod) or _lacks_its_object(function):
        raise BadTask(
            f"{name}: a method cannot be a task, because a job has no object to pass as its first argument; move the "
            "function out of the class, or make it a @staticmethod below @app.task"
        )
    if not callable(function):
        raise BadTask(f"{name}: expected a function, found {function!r}")
    if isinstance(function, type):
        raise BadTask(f"{name}: a class cannot be a task; write a function that makes its object and uses it")
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise BadTask(f"{name}: a generator cannot be a task; return a list, or enqueue a job per item")
    if kind is None and not _is_async(function) and _is_async(inspect.unwrap(function)):
        raise BadTask(
            f"{name}: a decorator hides its async function behind a plain one, so what the decorator does is over "
            "before the function runs; make the wrapper an async function that awaits it. Or say what it does: "
            'kind="async" if it returns the coroutine, kind="thread" if it runs it'
        )


def _lacks_its_object(function: Any) -> bool:
    """Whether it is a function of a class that takes `self` or `cls`, and is not bound to one."""
    plain = None if inspect.ismethod(function) else inspect.unwrap(function)
    if not inspect.isfunction(plain):
        return False
    owner, code = plain.__qualname__.split(".")[:-1], plain.__code__
    in_class = bool(owner) and owner[-1] != "<locals>"
    return in_class and code.co_varnames[: min(1, code.co_argcount)] in (("self",), ("cls",))


def _check_kind(name: str, function: Callable[..., object], kind: str) -> None:
    if kind not in ("async", "thread", "process"):
        raise BadTask(f'{name}: kind: expected "async", "thread" or "process", found {kind!r}')
    is_async = _is_async(function)
    if is_async != (kind == "async") and (is_async or not _is_async(inspect.unwrap(function))):
        raise BadTask(f"{name}: {'an async' if is_async else 'a plain'} function cannot run as kind={kind!r}")
    if kind == "process" and "<" in getattr(function, "__qualname__", "<"):
        raise BadTask(f'{name}: kind="process" needs a function at the top level of a module, found {function!r}')
