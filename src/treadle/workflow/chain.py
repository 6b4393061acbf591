"""`chain(a, b, c)`: each job runs after the one before it, and can take its result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

from msgspec.structs import replace

from treadle.core.errors import BadOption
from treadle.core.job import Continuation, JobSpec, Source
from treadle.policy.retry import read_policy
from treadle.workflow.flow import (
    WHERE_TO,
    Chain,
    Flow,
    Gather,
    Makes,
    composed,
    made_to_wait,
    specs_of,
)
from treadle.workflow.plan import FLOW, plan_for

if TYPE_CHECKING:
    from typing_extensions import TypeVar
else:
    from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")
V = TypeVar("V")


@overload
def chain(a: Continuation[Any, A], /, *, pass_result: bool = True) -> Chain[A, A]: ...


@overload
def chain(a: Continuation[A, Any], b: Makes[[A], Any, B], /, *, pass_result: Literal[True] = True) -> Chain[B, B]: ...


@overload
def chain(
    a: Continuation[A, Any], b: Makes[[A], B, Any], c: Makes[[B], Any, V], /, *, pass_result: Literal[True] = True
) -> Chain[V, V]: ...


@overload
def chain(
    a: Continuation[A, Any], b: Makes[[A], Any, Any], c: Continuation[Any, V], /, *, pass_result: Literal[True] = True
) -> Chain[V, V]: ...


@overload
def chain(
    a: Continuation[Any, Any], b: Continuation[B, Any], c: Makes[[B], Any, V], /, *, pass_result: Literal[True] = True
) -> Chain[V, V]: ...


@overload
def chain(a: Continuation[Any, Any], b: Continuation[Any, B], /, *, pass_result: bool = True) -> Chain[B, B]: ...


@overload
def chain(
    a: Continuation[Any, Any], b: Continuation[Any, Any], c: Continuation[Any, V], /, *, pass_result: bool = True
) -> Chain[V, V]: ...


@overload
def chain(a: Any, b: Any, c: Any, d: Any, /, *more: Any, pass_result: bool = True) -> Chain[Any, Any]: ...


def chain(*steps: Any, pass_result: bool = True) -> Any:
    """Jobs that run one after the other. Each takes the result of the one before as its first argument
    (pass_result=False: none does). A step with `options(pass_result=False)` takes none, and passes its own on.

    A step is a spec, which may leave out its first argument (`task.job(more="...")`), a task, or a flow, in which the
    jobs with pass_result=True take the result.
    Raises BadArgument if the given arguments leave no room for the result, and BadOption for a chain without steps.
    """
    if not steps:
        raise BadOption("chain", "needs at least one step")
    specs: list[JobSpec[Any, Any]] = []
    for number, step in enumerate(steps):
        takes = pass_result and number > 0
        spec = _step(step, takes, specs[-1].source if specs else None)
        if specs:
            if takes:
                spec = _taking(spec)
            [spec] = made_to_wait([spec], (specs[-1].id,), None)
        specs.append(spec)
    return composed(tuple(specs), (specs[-1],), plan_for(None, None), "chain", kind=Chain)


def _step(step: Any, takes: bool, source: Source | None) -> JobSpec[Any, Any]:
    if isinstance(step, JobSpec | Flow):
        [spec] = specs_of([step], "chain", source)
        return spec
    if isinstance(step, Gather):
        raise BadOption("gather", WHERE_TO)
    if not hasattr(step, "late"):
        is_django = hasattr(step, "module_path")
        what = "a Django task; only tasks of @app.task can be in a chain" if is_django else f"{step!r:.60}"
        raise BadOption("chain", f"expected specs (task.job(...)), flows or tasks, found {what}")
    spec = step.late() if takes else step.job()
    assert isinstance(spec, JobSpec)
    return spec


def _taking(spec: JobSpec[Any, Any]) -> JobSpec[Any, Any]:
    """The spec, with the result before it as its first argument. In a flow, only jobs with pass_result take it. A spec
    with pass_result=False takes none."""
    if spec.new.task == FLOW or spec.alone:
        return spec
    policy = read_policy(spec.new.retry)
    if spec.lacks is None and not policy.pass_result and spec.signature is not None:
        spec.signature.check_late(spec.new.payload)
    changed = spec.changed(retry=replace(policy, pass_result=True).text())
    changed.lacks = None
    return changed
