"""The changes that an estimate tries out: more workers, more slots or starts of a limit, and what is paused resumed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from treadle.admin.estimate.crew import Extra
from treadle.admin.estimate.snapshot import Snapshot
from treadle.admin.explain.wording import count, resume, set_limit, start_worker
from treadle.core.command_lines import command
from treadle.core.defaults import SYSTEM_QUEUE
from treadle.core.limit_model import LimitUse
from treadle.core.model import Presence, Record, State
from treadle.core.placement import Needs, label_text
from treadle.core.placement_words import coded, needs_of, place_options
from treadle.policy.misfits import is_left_by
from treadle.storage import rule_for
from treadle.storage.row_rules import costs

MODELS: Final = 2  # kinds of workers that are tried out for one queue


class Option(Struct, frozen=True):
    """A change in words, the command that makes it, and what it is in a virtual run."""

    what: str
    command: str
    extra: Extra


def of_job(copy: Snapshot, row: Record) -> Iterator[Option]:
    """The changes that may let this job start earlier."""
    if row.state is State.READY and row.queue_position is None and row.blocked_on is None:
        yield Option("it is queued now", _plain(command("jobs", "run-now", row.job.id)), Extra(now=True))
    model = model_for(copy, row.job.queue, row.job.task, (row,))
    if model is not None:
        yield from _more_workers(model)
    yield from _of_limits(copy, {key for key, _ in costs(row.job)})


def of_queue(copy: Snapshot, queue: str) -> Iterator[Option]:
    """The changes that may empty this queue earlier."""
    rows = [row for row in copy.rows if row.job.queue == queue]
    models = dict[tuple[str, ...], Presence]()
    for task, _ in Counter(row.job.task for row in rows if row.job.task).most_common():
        model = model_for(copy, queue, task, [row for row in rows if row.job.task == task])
        if model is not None:
            models.setdefault((*options_of(model), str(model.slots)), model)
    for model in list(models.values())[:MODELS]:
        yield from _more_workers(model)
    yield from _of_limits(copy, {f"queue:{queue}"} | {key for row in rows for key, _ in row.job.limits})


def _of_limits(copy: Snapshot, keys: Collection[str]) -> Iterator[Option]:
    """For each rule that these keys obey, the changes to suggest. A key obeys its own rule, otherwise the rule of the
    name before the colon."""
    uses, rules = {use.key: use for use in copy.limits}, dict[str, LimitUse]()
    for key in sorted(keys):
        use = rule_for(uses, key)
        if use is not None:
            rules.setdefault(use.rule.name, use)
    for use in rules.values():
        yield from _of_limit(uses.get(use.rule.name, use))


def _more_workers(model: Presence) -> Iterator[Option]:
    [queue, *_] = model.queues
    start = _plain(start_worker(queue, "--concurrency", str(model.slots), *options_of(model)))
    place = [label_text(*label) for label in model.labels]
    place += [f"{amount:,} {name}" for name, amount, _ in model.resources]
    for number in (1, 2):
        apiece = " each" if number > 1 else ""
        has = f" ({', '.join(place)})" if place else ""
        what = f"{count(number, 'more worker')} with {count(model.slots, 'slot')}{apiece}{has}"
        yield Option(what, start, Extra(workers=number, like=model))


def _of_limit(use: LimitUse) -> Iterator[Option]:
    rule = use.unpaused or use.rule
    if use.pauses or rule.slots == 0:
        # A hold ends by itself; the command does not end it.
        if any(pause.why == "paused" for pause in use.pauses) or not use.pauses:
            yield Option(f"{use.key!r} is resumed", _plain(resume(use.rule.name)), Extra(resumed=(use.rule.name,)))
        return
    if rule.slots is not None:
        slots = 2 * rule.slots
        what = f"{rule.name!r} has {slots:,} slots instead of {rule.slots:,}"
        yield Option(what, _plain(set_limit(rule, slots=slots)), Extra(limits=(replace(rule, slots=slots),)))
    if rule.rate:
        rate = 2 * rule.rate
        burst = None if rule.burst is None else max(rule.burst, rate)
        what = f"{rule.name!r} allows {rate:,} starts per {rule.per:g} s instead of {rule.rate:,}"
        faster = replace(rule, rate=rate, burst=burst)
        yield Option(what, _plain(set_limit(rule, rate=rate)), Extra(limits=(faster,)))


def _plain(command: str) -> str:
    return command.strip("`")


SLOTS: Final = 20  # if no worker serves the queue yet: the default of a worker


def model_for(copy: Snapshot, queue: str, task: str, rows: Iterable[Record]) -> Presence | None:
    """A worker that could run these jobs of a task if more workers like it were started. It serves their queue only, as
    the command says. None: the code that can read them is unknown."""
    able = [worker for worker in copy.workers if task in worker.tasks]
    reading = [worker for worker in able if not all(is_left_by(row, worker, copy.workers) for row in rows)]
    if able and not reading:
        return None
    serving = [worker for worker in reading if queue in worker.queues]
    like = next(iter([*[worker for worker in serving if not worker.draining], *serving, *reading]), None)
    if like is None:
        like = _fresh(copy, queue, task)
    named = queue != SYSTEM_QUEUE and "," not in queue  # the command can name it
    queues = (queue,) if named or not like.queues else (queue, *[other for other in like.queues if other != queue])
    unused = tuple((name, has, 0) for name, has, _ in like.resources)
    return replace(like, queues=queues, resources=unused, paused=0.0, draining="", reserved="", running=0, age=0.0)


def options_of(model: Presence) -> list[str]:
    """The options of `treadle worker` for its labels and resources."""
    return place_options(model.labels, [(name, has) for name, has, _ in model.resources])


def _fresh(copy: Snapshot, queue: str, task: str) -> Presence:
    """A new worker with the labels and resources that the task needs, and the code of a worker that has the task. If no
    worker has it, the new one has every task."""
    like = next(
        iter([*coded(copy.workers, task), *(worker for worker in copy.workers if queue in worker.queues)]), None
    )
    needs = needs_of(copy.workers, task)
    labels, amounts = dict(like.labels if like else ()), {name: has for name, has, _ in like.resources} if like else {}
    for name, values in needs.requires if needs else ():
        if name not in labels or (values and labels[name] not in values):
            labels[name] = values[0] if values else ""
    for name, amount in needs.uses if needs else ():
        amounts[name] = max(amount, amounts.get(name, 0))
    own = {needed.task: needed for needed in like.needs} if like else {}
    known = [*(like.tasks if like else ()), *own, task, *(row.job.task for row in copy.rows if like is None)]
    return Presence(
        worker="model",
        queues=(queue,),
        tasks=tuple(name for name in dict.fromkeys(known) if _runs(own.get(name), labels, amounts)),
        slots=next((worker.slots for worker in copy.workers if queue in worker.queues), SLOTS),
        labels=tuple(labels.items()),
        resources=tuple((name, amount, 0) for name, amount in amounts.items()),
        needs=tuple(own.values()),
    )


def _runs(needs: Needs | None, labels: dict[str, str], amounts: dict[str, int]) -> bool:
    return needs is None or (needs.unmet(labels) is None and needs.excess(amounts) is None)
