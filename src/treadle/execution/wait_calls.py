"""The calls of `current()` that wait for other jobs, and for one of several waits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Literal, TypeVar, overload

import msgspec

from treadle.core.errors import BadOption, JobNotDone, NestedTransaction, NotRunning
from treadle.core.job import Continuation
from treadle.durable import (
    AsCompleted,
    Children,
    ChildWait,
    Durable,
    First,
    MapWait,
    TimeLimit,
    Waiting,
    checksum_of_jobs,
    name_of,
    plain,
)
from treadle.execution.job_run import JobRun

T = TypeVar("T")


class WaitContext(msgspec.Struct, frozen=True):
    """The methods of `current()` that wait for other jobs."""

    _run: JobRun

    def call(self, job: Continuation[T, Any], *, name: str | None = None) -> Waiting[T]:
        """Run another job as a child and wait for its result: `await current().call(make_invoice.job(order))`. The wait
        uses no slot. The child is stored when this run is suspended, and is the same in every run. It inherits
        deadline, lane and headers. If this job ends before it, in any way, it is cancelled.

        name  tells the calls of branches that run at the same time from each other. None: the name of the task
        Raises JobFailed, JobExpired and JobCancelled, stored as the error of a step is; BadOption, BadStep,
        StepMismatch, and for a job with a key or an id of its own what `enqueue` raises.
        """
        durable = self._durably("call")
        return durable.waiting(_child(durable, job, name))

    @overload
    def map(
        self,
        jobs: Iterable[Continuation[T, Any]],
        *,
        at_most: int | None = None,
        failures: Literal["raise"] = "raise",
        name: str | None = None,
    ) -> Waiting[list[T]]: ...
    @overload
    def map(
        self,
        jobs: Iterable[Continuation[T, Any]],
        *,
        at_most: int | None = None,
        failures: Literal["keep"],
        name: str | None = None,
    ) -> Waiting[list[T | JobNotDone]]: ...
    def map(
        self,
        jobs: Iterable[Continuation[Any, Any]],
        *,
        at_most: int | None = None,
        failures: Literal["raise", "keep"] = "raise",
        name: str | None = None,
    ) -> Waiting[list[Any]]:
        """Run jobs as children and wait for all their results, in the order of the jobs:
        `await current().map(fetch.job(url) for url in urls)`. See `call`. The children may be thousands.

        at_most   how many of them run at the same time: they are dealt to so many lanes in turn, and each lane runs
                  one after the other. None: no limit
        failures  "raise": as soon as a child has failed, the others are cancelled, and its error is raised. "keep": the
                  list has the error in the place of the result
        name      as that of `call`
        """
        durable = self._durably("map")
        return durable.waiting(_map(durable, jobs, at_most, failures, name))

    def as_completed(self, jobs: Iterable[Continuation[T, Any]], *, name: str | None = None) -> AsCompleted[T]:
        """Run jobs as children and take them in the order of their ending:
        `async for done in current().as_completed(jobs): done.result()`. The order is recorded. This run is woken at
        each ending: for hundreds of jobs use `map`. If the loop is left, the other children go on, at most as long as
        this job does. `name`: as that of `call`."""
        durable = self._durably("as_completed")
        return _as_completed(durable, jobs, name, durable.over)

    def first(
        self, name: str | None = None, /, *, keep: bool = False, **waits: Waiting[Any]
    ) -> Waiting[tuple[str, Any]]:
        """The name and the value of the first wait that is over:
        `match await current().first(paid=current().wait_for("paid"), late=current().sleep(3600)):`. The winner is
        recorded. Children that lost are cancelled; with `keep` they go on, also behind this job. A signal that was not
        received stays for a later wait. If several are over, the first one named wins. In branches that run at the same
        time each gets a name of its own, before the waits. Raises what the winner raises, and BadOption."""
        durable = self._durably("first")
        return durable.waiting(_first(durable, name, waits, keep))

    def timeout(self, length: float | timedelta, *, name: str | None = None) -> TimeLimit:
        """`async with current().timeout(3 * 86_400):` bounds the time of durable code in seconds, over all runs of the
        job. If the time has passed during a wait, or before a step, the block ends there with TimeoutError, in this run
        and in every later one. A step in progress is not interrupted. `name`: as that of `call`. Raises BadOption,
        BadStep and StepMismatch."""
        return TimeLimit(self._durably("timeout"), length, name)

    def _durably(self, step: str | None = None) -> Durable:
        run = self._run
        if step is not None and run.transaction is not None:
            # With a single writer the step would wait for itself; with any storage a sleep would roll back the block.
            raise NestedTransaction(
                f"{step!r}: take steps and sleep before current().transaction(), whose commit ends the job"
            )
        if run.durable is None:
            backend = run.durable_backend
            if backend is None:
                raise NotRunning(
                    'steps, sleeps and waits do not work in a function of kind="process": take them in an async task '
                    "or in one in a thread, and let that wait for jobs of this task"
                )
            run.durable = Durable(run, backend, backend.codec(run.record.job.task))
            if run.version is not None and run.version not in run.record.checkpoints:
                run.durable.checkpoints.note(run.version)
        return run.durable


class SynchronousWaits:
    """The same for functions in threads: a part of `current().sync`."""

    def __init__(self, durable: Durable) -> None:
        self._durable = durable

    def call(self, job: Continuation[T, Any], *, name: str | None = None) -> T:
        """As `current().call`."""
        durable = self._durable
        result: T = durable.wait_here(durable.over_here(_child(durable, job, name)))
        return result

    @overload
    def map(
        self,
        jobs: Iterable[Continuation[T, Any]],
        *,
        at_most: int | None = None,
        failures: Literal["raise"] = "raise",
        name: str | None = None,
    ) -> list[T]: ...
    @overload
    def map(
        self,
        jobs: Iterable[Continuation[T, Any]],
        *,
        at_most: int | None = None,
        failures: Literal["keep"],
        name: str | None = None,
    ) -> list[T | JobNotDone]: ...
    def map(
        self,
        jobs: Iterable[Continuation[Any, Any]],
        *,
        at_most: int | None = None,
        failures: Literal["raise", "keep"] = "raise",
        name: str | None = None,
    ) -> list[Any]:
        """As `current().map`."""
        durable = self._durable
        results: list[Any] = durable.wait_here(durable.over_here(_map(durable, jobs, at_most, failures, name)))
        return results

    def as_completed(self, jobs: Iterable[Continuation[T, Any]], *, name: str | None = None) -> AsCompleted[T]:
        """As `current().as_completed`, for `for`."""
        durable = self._durable
        return _as_completed(durable, jobs, name, lambda wait: durable.wait_here(durable.over_here(wait)))

    def first(self, name: str | None = None, /, *, keep: bool = False, **waits: Waiting[Any]) -> tuple[str, Any]:
        """As `current().first`. The waits are those of `current()`, which are not awaited:
        `current().sync.first(paid=current().wait_for("paid"), late=current().sleep(3600))`."""
        durable = self._durable
        winner: tuple[str, Any] = durable.wait_here(durable.over_here(_first(durable, name, waits, keep)))
        return winner

    def timeout(self, length: float | timedelta, *, name: str | None = None) -> TimeLimit:
        """As `current().timeout`, for `with`."""
        return TimeLimit(self._durable, length, name)


def _map(
    durable: Durable,
    jobs: Iterable[Continuation[Any, Any]],
    at_most: int | None,
    failures: Literal["raise", "keep"],
    name: str | None,
) -> MapWait:
    specs = durable.backend.specs(durable.run.record, jobs, "map")
    plain(specs, "map", at_most)
    if failures not in ("raise", "keep"):
        raise BadOption("map.failures", f'expected "raise" or "keep", found {failures!r}')
    request = durable.asked(f"map:{name or name_of(specs)}", checksum_of_jobs(specs))
    return MapWait(durable, request, specs, at_most, failures == "keep")


def _as_completed(
    durable: Durable, jobs: Iterable[Continuation[Any, Any]], name: str | None, take: Callable[[Any], Any]
) -> AsCompleted[Any]:
    specs = durable.backend.specs(durable.run.record, jobs, "as_completed")
    plain(specs, "as_completed")
    name = name or name_of(specs)
    request = durable.asked(f"as_completed:{name}", checksum_of_jobs(specs))
    durable.checkpoints.end(request)
    return AsCompleted(durable, Children(durable, request, specs), lambda: durable.asked(f"ended:{name}"), take)


def _first(durable: Durable, name: str | None, waits: Mapping[str, object], keep: bool) -> First:
    parts = durable.parts_of(waits)
    return First(durable, durable.asked("first" if name is None else f"first:{name}"), parts, keep)


def _child(durable: Durable, job: Continuation[Any, Any], name: str | None) -> ChildWait:
    [spec] = durable.backend.specs(durable.run.record, [job], "call")
    return ChildWait(durable, durable.asked(f"call:{name or name_of([spec])}", checksum_of_jobs([spec])), spec)
