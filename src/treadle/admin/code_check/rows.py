"""Checks one unfinished row at a time: its task, its queue, its arguments, its recorded steps."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from treadle.admin.code_check.findings import Findings, Patch
from treadle.admin.code_check.step_names import STEP_NUMBER, StepNames, steps_of
from treadle.core.errors import UNREADABLE, BadArgument, BadResult, BadTask
from treadle.core.model import OURS, Presence, Record, State
from treadle.core.placement_words import never
from treadle.core.similar_names import closest
from treadle.durable import PATCHED, read_entry, signature_of
from treadle.policy.parts import is_part
from treadle.policy.retry import read_policy
from treadle.serialization import misfits, reads
from treadle.serialization.call_codec import CallCodec
from treadle.tasks.core import TaskCore
from treadle.tasks.reducers import DEFAULT, Reducer
from treadle.tasks.versions import fitting, version_begun
from treadle.workflow.plan import FLOW, plan_of
from treadle.workflow.signals import signal_name

OWN: Final = "treadle."  # prefix of the names of system tasks
COMPATIBLE: Final = "accept both forms until these jobs have ended, or give the changed function a new task name"


class RowChecks:
    """The checks that need one row only, and the ids of other rows that the rest needs.

    served  the queues from which workers with this code claim
    """

    def __init__(
        self,
        tasks: Mapping[str, TaskCore],
        reducers: Mapping[str, Reducer],
        findings: Findings,
        served: Collection[str],
    ) -> None:
        self._tasks, self._reducers, self._findings, self._served = tasks, reducers, findings, served
        self._steps: dict[tuple[str, int], StepNames] = {}
        self.patches = PatchChecks()

    def all_patches(self) -> list[Patch]:
        """The patches in the sources of all tasks, including those without a stored job."""
        for task in self._tasks.values():
            self._names(task)
        return self.patches.sorted()

    def look(self, row: Record) -> None:
        """Check a row of a user's task or a flow."""
        job, task = row.job, self._tasks.get(row.job.task)
        if task is None and job.task != FLOW:
            self._removed(row)
            return
        if job.queue not in self._served:
            self._unserved(row)
        if task is None:
            self._reducer(row, None)
            return
        if row.function_done:
            self._reducer(row, task)
            return
        if is_part(job):
            return  # its arguments and its order of steps are those of its parent
        chosen = fitting(task, row)
        if chosen is None:
            self._version(row, task)
            return
        task = chosen
        later = job.retry is not None and bool(read_policy(job.retry).pass_result)
        if not reads(task.signature, job.payload, later):
            self._misfits(row, task, later)
        if row.checkpoints:
            self._recorded(row, task)

    def _removed(self, row: Record) -> None:
        name = row.job.task
        hint = _similar(name, self._tasks)
        self._findings.add(
            "task",
            name,
            f"this code has no such task{hint}: its jobs are never claimed",
            f"keep it, or register its function under this name too (@app.task(name={name!r})), until its jobs have "
            "ended; or cancel them: `treadle jobs cancel --task`",
            row=row,
        )

    def _version(self, row: Record, task: TaskCore) -> None:
        begun = version_begun(row)
        self._findings.add(
            "task",
            task.name,
            f"its jobs began with version {begun}, which this code does not have: they wait for a worker that has it, "
            "and then fail",
            f"keep the old function next to the new one (@app.task(version={begun})) until these jobs have ended",
            place=f"version {begun}",
            row=row,
        )

    def _unserved(self, row: Record) -> None:
        self._findings.add(
            "queue",
            row.job.queue,
            "no task of this code has this queue, so workers without --queues do not claim from it",
            "start a worker with --queues that names it, and give this check the same --queues",
            row=row,
        )

    def _misfits(self, row: Record, task: TaskCore, later: bool) -> None:
        try:
            errors = misfits(task.signature, row.job.payload, later)
        except BadTask as error:
            errors = [BadArgument(task.name, None, str(error))]
        for misfit in errors:
            self._findings.add(
                "arguments",
                task.name,
                f"parameter {misfit.parameter!r} {misfit.problem}" if misfit.parameter else misfit.problem,
                COMPATIBLE,
                place=misfit.parameter or "",
                row=row,
            )

    # --- durable code

    def _recorded(self, row: Record, task: TaskCore) -> None:
        names = self._names(task)
        self.patches.look(row, names.patches)
        for key, text in row.checkpoints:
            if key.startswith((OURS, PATCHED, "answer:")):  # an answer has the name of the mailbox of its message
                continue
            if not names.has(key):
                self._step(row, task, key, names)
            else:
                self._value(row, task, key, text, names)

    def _names(self, task: TaskCore) -> StepNames:
        key = task.name, task.version
        names = self._steps.get(key)
        if names is None:
            names = self._steps[key] = steps_of(task.function)
            self.patches.add(task.name, names.patches)
        return names

    def _step(self, row: Record, task: TaskCore, key: str, names: StepNames) -> None:
        hint = _similar(key, names.names)
        self._findings.add(
            "step",
            task.name,
            f"the recorded step {key!r} is not in its source any more{hint}: its run raises StepMismatch, or also "
            "takes the new step",
            "keep names and order of the steps while jobs are running, or give the changed function a new task name; "
            "`treadle.testing.replay` shows what each history does",
            place=STEP_NUMBER.sub("", key),
            row=row,
        )

    def _value(self, row: Record, task: TaskCore, key: str, text: str, names: StepNames) -> None:
        function = names.names.get(STEP_NUMBER.sub("", key))
        if function is None:
            return
        try:
            value = read_entry(text).result
            if value is not None:
                codec: CallCodec = signature_of(function, f"step {key!r}", task.signature._codec)
                codec.decode_result(value)
        except BadResult as error:
            self._findings.add(
                "step",
                task.name,
                f"the recorded result of step {key!r} does not fit its function any more: {error}",
                COMPATIBLE,
                place=f"{key} result",
                row=row,
            )
        except (BadTask, *UNREADABLE):
            return

    def signal(self, row: Record, parent: Record | None) -> None:
        """Check the row of a signal that the job `parent` waits for."""
        name = signal_name(row)
        task = None if parent is None else self._tasks.get(parent.job.task)
        if task is not None and parent is not None:
            task = fitting(task, parent)
        if name is None or parent is None or task is None or row.job.id not in parent.after:
            return
        names = self._names(task)
        if not names.has(f"wait:{name}") and not names.has(f"receive:{name}"):
            self._findings.add(
                "signal",
                task.name,
                f"jobs wait for the signal {name!r}, which its source does not wait for any more",
                f"keep `wait_for({name!r})` or `receive({name!r})` until these jobs have ended",
                place=name,
                row=parent,
            )

    # --- workflows

    def _reducer(self, row: Record, task: TaskCore | None) -> None:
        plan = plan_of(row)
        if plan.mark is not None or plan.guard or row.state is State.RUNNING:
            return
        name = plan.reduce or (task.reduce if task is not None else None) or DEFAULT
        if name not in self._reducers:
            hint = _similar(name, self._reducers)
            self._findings.add(
                "reducer",
                name,
                f"this code has no such reducer{hint}: workflows that name it fail when their children have ended",
                f"keep `@app.reducer` {name!r} until they have ended",
                row=row,
            )


def _similar(name: str, known: Iterable[str]) -> str:
    like = closest(name, known)
    return f"; the most similar one is {like!r}" if like else ""


class PlacementChecks:
    """Adds notes: the workers of the deployment may have other labels. Without running workers there is nothing to
    compare."""

    def __init__(self, tasks: Mapping[str, TaskCore], workers: Sequence[Presence], findings: Findings) -> None:
        self._findings = findings
        self._lacking: dict[str, str] = {}
        for name, task in tasks.items():
            if workers and task.needs is not None and (lacks := never(task.needs, workers)) is not None:
                self._lacking[name] = lacks

    def look(self, row: Record) -> None:
        """Check a row of a user's task."""
        lacks = self._lacking.get(row.job.task)
        if lacks is not None and not row.function_done:
            self._findings.add(
                "worker",
                row.job.task,
                lacks,
                "start a worker with these labels and resources, or change what @app.task says",
                level="note",
                row=row,
            )


# --- patches
#
# The patches of durable code (`current().patched`): which of them stored jobs still need.


class PatchChecks:
    """Counts the unfinished jobs that take the new code of a patch, and those that may take its old code."""

    def __init__(self) -> None:
        self._patches: dict[tuple[str, str], Patch] = {}

    def add(self, task: str, names: Iterable[str]) -> None:
        """Note the patches in the source of a task."""
        for name in names:
            self._patches.setdefault((task, name), Patch(task=task, name=name))

    def look(self, row: Record, names: Iterable[str]) -> None:
        """Count a job with checkpoints."""
        keys = {key for key, _ in row.checkpoints if not key.startswith(OURS)}
        for name in names if keys else ():
            patch = self._patches[row.job.task, name]
            if f"{PATCHED}{name}" in keys:
                patch.new += 1
            else:
                patch.old += 1
                patch.example = patch.example or row.id

    def sorted(self) -> list[Patch]:
        """By task and name."""
        return [self._patches[key] for key in sorted(self._patches)]
