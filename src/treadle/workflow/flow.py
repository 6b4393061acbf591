"""Compositions of jobs: `flow(...).then(...)`, `gather(...).into(...)`, `chain(...)`, `Conclude(...)`.

They are values. Their jobs are stored, all or none, when a task returns them or a caller enqueues them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, Protocol, overload

from msgspec.structs import replace

from treadle.concurrency.spawn import answers_coroutine
from treadle.core import defaults
from treadle.core.awaiting import refuse_to_block, report_dropped
from treadle.core.errors import BadOption
from treadle.core.job import Continuation, Job, JobSpec, Sender, Source, T, T_co, W, W_co
from treadle.core.model import NewJob
from treadle.policy.retry import read_policy
from treadle.serialization.call_codec import MISSING
from treadle.tasks.reducers import reducer_of
from treadle.tasks.when import When, all_succeeded
from treadle.workflow.checks import acyclic, usable
from treadle.workflow.plan import FLOW, EndingPlan, either_id, mark_id, plan_for, root_of

if TYPE_CHECKING:
    from typing_extensions import TypeVar
else:
    from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")
V = TypeVar("V")
Q = ParamSpec("Q")

Scope = Literal["tree", "job"]
Items = Any  # a spec, a flow, or an iterable of them


class Conclude(Continuation[T_co, T_co]):
    """Sets the value of the whole workflow, whatever its other jobs return: return it from a task, or pass it to
    `flow(...).value(...)`. The first one counts."""

    __slots__ = ("result",)

    def __init__(self, value: T_co) -> None:
        self.result = value


class Flow(Continuation[T_co, W_co]):
    """Jobs to run, and jobs that follow them. Immutable: `then` and `value` return a new flow."""

    __slots__ = ("_front", "_own", "_plan", "_source", "_specs")

    def __init__(
        self,
        specs: tuple[JobSpec[Any, Any], ...],
        front: tuple[JobSpec[Any, Any], ...],
        plan: EndingPlan,
        source: Source | None,
        own: object = MISSING,
    ) -> None:
        self._specs, self._front, self._plan, self._source, self._own = specs, front, plan, source, own

    @property
    def specs(self) -> tuple[JobSpec[Any, Any], ...]:
        """Its jobs, in the order given; a nested flow is one of them."""
        return self._specs

    @overload
    def then(
        self, spec: Continuation[Any, None], /, *, when: When | None = None, scope: Scope = "tree"
    ) -> Flow[W_co, W_co]: ...
    @overload
    def then(
        self,
        spec: Continuation[Any, B],
        /,
        *more: Continuation[Any, B],
        when: When | None = None,
        scope: Scope = "tree",
    ) -> Flow[B, B]: ...
    @overload
    def then(
        self,
        *specs: Continuation[Any, Any] | Iterable[Continuation[Any, Any]],
        when: When | None = None,
        scope: Scope = "tree",
    ) -> Flow[Any, Any]: ...
    def then(self, *specs: Items, when: When | None = None, scope: Scope = "tree") -> Any:
        """Continue with these jobs when the previous ones have ended with all their descendants. With scope="job", the
        end of their own run is enough.

        when   how many must have succeeded or ended: all_succeeded() (default), all_done(), at_least(n, of=...)
        Raises BadOption for a condition that can never hold, and for a spec with an `after` of its own.
        """
        if self._own is not MISSING:
            raise BadOption("then", "must come before value(): flow(...).then(...).value(...)")
        more = specs_of(specs, "then", self._source)
        ups, marks = self._front, list[JobSpec[Any, Any]]()
        if not more:
            raise BadOption("then", "needs at least one job to continue with")
        if scope not in ("tree", "job"):
            raise BadOption("scope", f'expected "tree" or "job", found {scope!r}')
        if scope == "job":
            ups, marks = _marked(ups)
        later = made_to_wait(more, tuple(spec.id for spec in marks or ups), when)
        known = {spec.id: spec for spec in ups}
        before = [known.get(spec.id, spec) for spec in self._specs]
        return composed((*before, *marks, *later), tuple(later), self._plan, "then")

    def value(self, value: V | Conclude[V]) -> Flow[V, W_co]:
        """Give the job that returns this flow a result of its own, which can be read as soon as its run has ended. With
        `Conclude(v)` it is also the value of the whole workflow."""
        own, plan = value, self._plan
        if isinstance(value, Conclude):
            own, plan = value.result, replace(plan, locked=True)
        return Flow(self._specs, self._front, plan, self._source, own)

    @property
    def own(self) -> object:
        """The value set with `value`, or MISSING."""
        return self._own

    @property
    def plan(self) -> EndingPlan:
        return self._plan

    def rows(self) -> list[NewJob]:
        """All its jobs, including those of nested flows."""
        return [new for spec in self._specs for new in (*spec.others, spec.new)]

    def job(self, *, source: Source | None = None) -> JobSpec[W_co, W_co]:
        """The flow as one job, which ends when all its jobs have ended; its result is the flow's value. Its id is known
        before it is sent. Enqueue it, or use it in another flow. Raises BadOption for an empty flow without an app, and
        for a flow with a `value`."""
        maker = self._source or source
        if maker is None:
            raise BadOption("flow", "is empty, so it belongs to no app; enqueue it with app.enqueue(...)")
        if self._own is not MISSING:
            raise BadOption(
                "value", "sets the result of the task that returns the flow; this flow is not returned by a task"
            )
        id = maker.fresh_id()
        queue = self._specs[0].new.queue if self._specs else defaults.QUEUE
        root = root_of(id, self._plan, [spec.id for spec in self._specs if spec.new.parent is None], queue=queue)
        others = tuple([replace(new, root=id, parent=new.parent or id) for new in self.rows()])
        return JobSpec(root, source=maker, others=others)

    @answers_coroutine
    def enqueue(self, *, within: Any = None) -> Coroutine[Any, Any, Job[W_co, W_co]]:
        """Store all its jobs and a root job, which is returned. They are durable when this returns, or, with `within=`,
        when that transaction is committed."""
        unbegun: list[Any] = []
        return report_dropped(f"a {type(self).__name__.lower()}", self._enqueue(within, unbegun), unbegun)

    async def _enqueue(self, within: Any, unbegun: list[Any]) -> Job[W_co, W_co]:
        unbegun.clear()
        spec, sender = self._sendable()
        return self._handle(*await sender.send([spec], within))

    def enqueue_sync(self, *, within: Any = None) -> Job[W_co, W_co]:
        """`enqueue` for synchronous code: it blocks this thread until the jobs are stored. Raises EventLoopError in a
        thread that runs an event loop."""
        name = f"{type(self).__name__.lower()}(...)"
        refuse_to_block(f"{name}.enqueue_sync()", f"{name}.enqueue()")
        spec, sender = self._sendable()
        return self._handle(*sender.send_sync([spec], within))

    def _sendable(self) -> tuple[JobSpec[W_co, W_co], Sender]:
        spec = self.job()
        assert spec.source is not None
        return spec, spec.source.sender

    def _handle(self, root: Job[W_co, W_co]) -> Job[W_co, W_co]:
        """The handle that `enqueue` returns: of the root job."""
        return root

    def __repr__(self) -> str:
        return f"<flow of {len(self._specs)} jobs>"


class Chain(Flow[T_co, W_co]):
    """A flow of jobs that run one after the other."""

    __slots__ = ()

    def _handle(self, root: Job[W_co, W_co]) -> Job[W_co, W_co]:
        """The handle of the last job of the chain."""
        last = self._specs[-1]
        return Job(last.id, last.new.task, root._sender, last.decode, root.created)


def composed(
    specs: tuple[JobSpec[Any, Any], ...],
    front: tuple[JobSpec[Any, Any], ...],
    plan: EndingPlan,
    where: str,
    source: Source | None = None,
    kind: type[Flow[Any, Any]] = Flow,
) -> Flow[Any, Any]:
    usable(specs, where)
    acyclic(new for spec in specs for new in (*spec.others, spec.new))
    for spec in specs:
        source = spec.source or source
    if plan.reduce is not None and source is not None:
        reducer_of(source.reducers, plan.reduce)
    return kind(specs, front, plan, source)


def specs_of(items: Iterable[Items], where: str, source: Source | None = None) -> list[JobSpec[Any, Any]]:
    """The specs of these items; a nested flow becomes one job."""
    specs: list[JobSpec[Any, Any]] = []
    for item in items:
        if isinstance(item, JobSpec):
            specs.append(item)
        elif isinstance(item, Flow):
            specs.append(item.job(source=source or (specs[-1].source if specs else None)))
        elif isinstance(item, Iterable) and not isinstance(item, str):
            specs += specs_of(item, where, source)
        elif isinstance(item, Gather):
            raise BadOption("gather", WHERE_TO)
        else:
            raise BadOption(where, f"expected specs (task.job(...)) or flows, found {item!r}")
    return specs


def made_to_wait(specs: list[JobSpec[Any, Any]], ups: tuple[str, ...], when: When | None) -> list[JobSpec[Any, Any]]:
    """The specs, waiting for the jobs `ups`. In a flow, its first jobs wait."""
    when = all_succeeded() if when is None else when
    condition: object = when
    if not isinstance(condition, When):
        raise BadOption("when", f"expected all_succeeded(), all_done() or at_least(n), found {when!r}")
    required, failures_allowed = when.threshold(len(ups))
    fields: dict[str, Any] = {"after": ups, "required": required, "failures_allowed": failures_allowed}
    for spec in specs:
        if spec.new.after and spec.new.task != FLOW:
            raise BadOption("after", f"{spec!r} already has an after=, which then() or chain() would replace")
    return [behind(spec, fields) for spec in specs] if ups else specs


def behind(spec: JobSpec[Any, Any], fields: dict[str, Any]) -> JobSpec[Any, Any]:
    """The spec with these fields. In a flow, the jobs that wait for no job of the flow get them."""
    if spec.new.task != FLOW:
        return spec.changed(**fields)
    if not spec.others:  # an empty flow
        return spec.changed(after=fields.get("after", ()))
    inside = {new.id for new in spec.others}
    changed = spec.changed()
    changed.others = tuple([new if inside & {*new.after} else _behind(new, fields) for new in spec.others])
    return changed


def _behind(new: NewJob, fields: dict[str, Any]) -> NewJob:
    if new.function_done and not new.after:
        return replace(new, after=fields.get("after", ()))
    if new.after:
        raise BadOption("after", f"job {new.id} already has an after=, which then() or chain() would replace")
    return replace(new, **fields)


def _marked(ups: Iterable[JobSpec[Any, Any]]) -> tuple[tuple[JobSpec[Any, Any], ...], list[JobSpec[Any, Any]]]:
    """The specs, changed so that each job stores a mark when its run ends; and for each a row that waits for the mark,
    or for the job itself if it ends without a mark."""
    marked, marks = [], []
    for spec in ups:
        if spec.new.task == FLOW:
            raise BadOption("scope", "a flow inside a flow has no run to wait for")
        policy = replace(read_policy(spec.new.retry), marks=True)
        marked.append(spec.changed(retry=policy.text()))
        either = root_of(
            either_id(spec.id),
            EndingPlan(mark="either"),
            (mark_id(spec.id), spec.id),
            required=1,
            queue=spec.new.queue,
            parent=spec.id,
            wait_timeout=defaults.MAX_DELAY,
        )
        marks.append(JobSpec[Any, Any](replace(either, failures_allowed=0), source=spec.source))
    return tuple(marked), marks


@overload
def flow(a: Continuation[Any, A], b: Continuation[Any, B], /, *, when: When | None = None) -> Flow[A | B, A | B]: ...
@overload
def flow(
    a: Continuation[Any, A], b: Continuation[Any, B], c: Continuation[Any, V], /, *, when: When | None = None
) -> Flow[A | B | V, A | B | V]: ...
@overload
def flow(*specs: Continuation[Any, W], when: When | None = None) -> Flow[W, W]: ...
@overload
def flow(specs: Iterable[Continuation[Any, W]], /, *, when: When | None = None) -> Flow[W, W]: ...
@overload
def flow(
    a: Continuation[Any, Any] | Iterable[Continuation[Any, Any]],
    b: Continuation[Any, Any] | Iterable[Continuation[Any, Any]],
    c: Continuation[Any, Any] | Iterable[Continuation[Any, Any]],
    d: Continuation[Any, Any] | Iterable[Continuation[Any, Any]],
    /,
    *more: Continuation[Any, Any] | Iterable[Continuation[Any, Any]],
    when: When | None = None,
) -> Flow[Any, Any]: ...
@overload
def flow(
    *specs: Continuation[Any, Any] | Iterable[Continuation[Any, Any]], when: When | None = None, reduce: str
) -> Flow[Any, Any]: ...
def flow(*specs: Items, when: When | None = None, reduce: str | None = None) -> Any:
    """Jobs that run concurrently: `return flow(fetch.job(u) for u in urls)`.

    when    how many of them must succeed for the flow to succeed; default: all, except those whose failure a waiting
            job allows
    reduce  the name of the reducer that combines their results into one value; default: that of the task that returns
            the flow, otherwise "last"
    A flow without jobs succeeds. Raises BadOption for an item that is not a spec or flow, or is given twice.
    """
    all_specs = specs_of(specs, "flow")
    if when is not None:
        if not isinstance(when, When):
            raise BadOption("when", f"expected all_succeeded(), all_done() or at_least(n), found {when!r}")
        when.threshold(len(all_specs))
    return composed(tuple(all_specs), tuple(all_specs), plan_for(reduce, when), "flow")


class Makes(Protocol[Q, T_co, W_co]):
    """A task, or a task with options."""

    def job(self, *args: Q.args, **kwargs: Q.kwargs) -> JobSpec[T_co, W_co]: ...


WHERE_TO = (
    "has no task that receives the results: write gather(...).into(task), or flow(...) for jobs whose results are not "
    "passed on"
)


class Gather(Generic[T]):
    """Jobs whose results are passed to one job: `gather(...).into(task)`."""

    __slots__ = ("_specs", "_when")

    def __init__(self, specs: list[JobSpec[Any, Any]], when: When | None) -> None:
        self._specs, self._when = specs, when

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in ("job", "enqueue", "then", "value"):
                raise BadOption("gather", WHERE_TO)
            raise AttributeError(f"'Gather' object has no attribute {name!r}", name=name, obj=self)

    def __repr__(self) -> str:
        return f"<gather of {len(self._specs)} jobs, without into(...)>"

    def into(self, task: Makes[Concatenate[list[T], Q], A, B], /, *args: Q.args, **kwargs: Q.kwargs) -> Flow[B, B]:
        """Call this task with the list of their results as its first argument, in the order in which the jobs were
        given. Jobs that did not succeed (with `when`) are left out. Raises BadArgument for arguments that do not
        fit."""
        spec = late(task, args, kwargs)
        policy = replace(read_policy(spec.new.retry), pass_result="list")
        last = made_to_wait([spec.changed(retry=policy.text())], tuple(up.id for up in self._specs), self._when)
        return composed((*self._specs, *last), tuple(last), plan_for(None, None), "gather")


@overload
def gather(a: Continuation[A, Any], b: Continuation[B, Any], /, *, when: When | None = None) -> Gather[A | B]: ...
@overload
def gather(
    a: Continuation[A, Any], b: Continuation[B, Any], c: Continuation[V, Any], /, *, when: When | None = None
) -> Gather[A | B | V]: ...
@overload
def gather(*specs: Continuation[W, Any], when: When | None = None) -> Gather[W]: ...
@overload
def gather(specs: Iterable[Continuation[W, Any]], /, *, when: When | None = None) -> Gather[W]: ...
def gather(*specs: Items, when: When | None = None) -> Any:
    """Jobs whose results go to one task: `return gather(fetch.job(u) for u in urls).into(summarise)`.

    when  how many must have succeeded or ended; default: all succeeded
    Without jobs, the list of results is empty.
    """
    return Gather(specs_of(specs, "gather"), when)


def late(task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> JobSpec[Any, Any]:
    """A spec of this task whose first argument is passed when it runs."""
    make: Callable[..., JobSpec[Any, Any]] | None = getattr(task, "late", None)
    if make is None:
        raise BadOption("into", f"expected a task, found {task!r}")
    return make(*args, **kwargs)
