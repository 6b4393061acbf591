"""The result of a check, and the checks for every storage: clock, workers, queues, limits, lost jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from treadle.admin import set_limit, start_worker
from treadle.admin.known_names import used, without_rule
from treadle.core import defaults
from treadle.core.command_lines import command, typed
from treadle.core.model import State
from treadle.core.placement_words import lacking
from treadle.core.queue_rules import ALL, OF, QueueRules
from treadle.core.similar_names import near
from treadle.core.words import lasts, plural
from treadle.server.doctor import placement
from treadle.storage import bound_of, bounds_in
from treadle.worker.leader import TASK as LEADER

if TYPE_CHECKING:
    from treadle.app.core import AppCore
    from treadle.core.limit_model import Limit
    from treadle.core.query_model import Stats
    from treadle.storage import Risk

YEAR_2024 = 1_704_067_200.0
AHEAD = 60.0  # s that a stored time may lie ahead of this clock without a warning
NEARLY = 0.8  # a queue that is filled to this share of its bound is named
LOOKED_AT = 1_000  # unfinished and failed jobs, each, that the check for lost jobs reads
# The checks that need nothing but the counts, and "moved", which each look at the overview makes.
OF_COUNTS = frozenset({"queues", "workers", "tasks", "paused", "limits", "failed", "bounds", "moved"})


class Check(Struct, frozen=True):
    """One line of output: the name of the check, what it found, and how to fix it."""

    verdict: Literal["ok", "warn", "fail"]
    name: str
    text: str
    advice: str = ""


def ok(name: str, text: str) -> Check:
    return Check("ok", name, typed(text))


def warn(name: str, text: str, advice: str) -> Check:
    return Check("warn", name, typed(text), typed(advice))


def fail(name: str, text: str, advice: str) -> Check:
    return Check("fail", name, typed(text), typed(advice))


def of_risk(risk: Risk) -> Check:
    """The check that found a risk of the storage."""
    return Check(risk.verdict, risk.name, typed(risk.text), typed(risk.advice))


async def checks(core: AppCore, has_tasks: bool) -> AsyncIterator[Check]:
    """The checks of clock, workers, queues, limits and jobs. A token that is bound to queues gets fewer of them."""
    stats, queues = await core.queues.stats(), core.storage.capabilities.queues
    if queues:
        text = f"bound to {', '.join(queues)}: clock, leases, limits and Treadle's own rows cannot be checked"
        yield warn("token", text, "use a token for every queue, or the URL of the storage itself")
    else:
        yield await _clock(core)
    yield _workers(stats)
    for check in of_counts(core, stats, has_tasks):
        yield check
    if not queues:
        yield await _lost(core)
    for check in failed(stats):
        yield check


def of_counts(core: AppCore, stats: Stats, has_tasks: bool) -> Iterator[Check]:
    """The warnings that the counts show, without another read."""
    yield from (*_unserved(stats), *_unplaced(stats), *_untaken(stats), *_shut(core, stats))
    if has_tasks:
        yield from _strangers(core, stats)
        if not core.storage.capabilities.queues:
            yield from _without_rule(core, stats)


def failed(stats: Stats) -> Iterator[Check]:
    """A warning if jobs have failed."""
    jobs = sum(count.jobs for count in stats.counts if count.state == "failed")
    if jobs:
        yield warn("failed", plural(jobs, "failed job"), "`treadle jobs list --state failed`; retry or delete them")


async def _clock(core: AppCore) -> Check:
    now = core.now()
    newest = (await core.jobs.list(limit=1)).records
    if now < YEAR_2024:
        return fail("clock", f"this machine's clock is off by years ({now:.0f})", "set the clock, preferably by NTP")
    ahead = newest[0].created_at - now if newest else 0.0
    if ahead > AHEAD:
        return warn(
            "clock",
            f"by this clock, the newest job was created {lasts(ahead)} in the future",
            "one of the clocks is or was wrong: compare this machine's with the storage's",
        )
    return ok("clock", "no job was created in the future")


def _workers(stats: Stats) -> Check:
    if stats.workers:
        slots, running = sum(one.slots for one in stats.workers), sum(one.running for one in stats.workers)
        return ok("workers", f"{plural(len(stats.workers), 'worker')}, {running} of {plural(slots, 'slot')} taken")
    return ok("workers", "no worker has sent a heartbeat recently")


def _unserved(stats: Stats) -> Iterator[Check]:
    served = {queue for worker in stats.workers for queue in worker.queues}
    if stats.workers:
        served.add(defaults.SYSTEM_QUEUE)  # every worker serves it, and its heartbeat does not list it
    jobs: dict[str, int] = {}
    for count in stats.counts:
        # The leader's row waits for no worker: it stays when the whole fleet was killed.
        if count.state in ("ready", "running") and count.task not in ("", LEADER):
            jobs[count.queue] = jobs.get(count.queue, 0) + count.jobs
    unplaced = placement.queues(stats)
    for queue, number in sorted(jobs.items()):
        if queue not in served and queue not in unplaced:
            guess = near(queue, served)
            yield warn(
                "queues",
                f"{plural(number, 'job')} in queue {queue!r}, and no worker serves it{guess}",
                f"start one: {_worker_for(queue)}",
            )


def _worker_for(queue: str) -> str:
    """The command that starts a worker of the queue."""
    if queue == defaults.DELAYED_QUEUE:
        return "`treadle worker [module:app] --protocol delayed`"
    return start_worker(queue, app="module:app")


def _unplaced(stats: Stats) -> Iterator[Check]:
    for task, lack, number in placement.unplaced(stats):
        what, _, advice = lack.partition(": ")
        yield warn("workers", f"{plural(number, 'job')} of task {task!r}: {what}", advice)


def _untaken(stats: Stats) -> Iterator[Check]:
    """The check for queued jobs that no worker of their queue can run, because none of them has the task."""
    jobs: dict[tuple[str, str], int] = {}
    for count in stats.counts:
        ours = not count.task or count.task.startswith("treadle.")
        serving = [worker for worker in stats.workers if count.queue in worker.queues]
        if not ours and count.state == "ready" and serving and not any(count.task in one.tasks for one in serving):
            jobs[count.queue, count.task] = jobs.get((count.queue, count.task), 0) + count.jobs
    for (queue, task), number in sorted(jobs.items()):
        if lacking(stats.workers, task) is not None:
            continue
        guess = near(task, [name for worker in stats.workers for name in worker.tasks])
        what = f"{plural(number, 'job')} of task {task!r} in queue {queue!r}, which none of its workers has{guess}"
        yield warn("tasks", what, "deploy a worker that has it, or cancel them: `treadle jobs cancel --task ...`")


def _shut(core: AppCore, stats: Stats) -> Iterator[Check]:
    pauses = [use for use in stats.limits if use.pauses and use.behind is None and not use.blocked and not use.used]
    known = used(core.tasks, replace(stats, limits=tuple(use for use in stats.limits if use not in pauses)))
    for use in stats.limits:
        if use.rule.slots != 0:
            continue
        if use.key == ALL:
            yield from _all_shut(stats)
        elif use.key.startswith(OF):
            queue = use.key.removeprefix(OF)
            held = sum(count.queued for count in stats.counts if count.queue == queue)
            if use.rule.name == ALL:
                continue  # its use, by this queue
            if held:
                text = f"queue {queue!r} is paused with {plural(held, 'queued job')}"
                yield warn("paused", text, command("queues", "resume", queue))
            elif not known.has("queue", queue):
                guess = near(queue, known.queues)
                yield warn(
                    "paused",
                    f"queue {queue!r} is paused, and nothing uses it{guess}",
                    f"{command('queues', 'resume', queue)} if the name is mistyped",
                )
        elif use.blocked:
            yield warn(
                "limits",
                f"limit {use.key!r} has 0 slots and blocks {plural(use.blocked, 'job')}",
                command("limits", "set", use.rule.name, options=["--slots", "N"]),
            )
        elif not known.has("limit", use.key):
            text = f"limit {use.key!r} is paused, has no rule and blocks no job"
            yield warn(
                "limits",
                f"{text}{near(use.key, known.limits)}",
                f"{command('limits', 'resume', use.key)} if the name is mistyped",
            )


def _all_shut(stats: Stats) -> Iterator[Check]:
    """The queues that the paused limit of all queues stops, if jobs are queued in them."""
    rules, held = QueueRules(stats.limits), Counter[str]()
    for count in stats.counts:
        if (pause := rules.pause_of(count.queue)) is not None and pause.rule.name == ALL:
            held[count.queue] += count.queued
    for queue, number in sorted((+held).items()):
        text = f"queue {queue!r} is paused with {plural(number, 'queued job')}, because the limit {ALL!r} is"
        yield warn("paused", text, command("limits", "resume", ALL))


def _strangers(core: AppCore, stats: Stats) -> Iterator[Check]:
    jobs: dict[str, int] = {}
    for count in stats.counts:
        ours = not count.task or count.task.startswith("treadle.")
        if not count.state.final and not ours and count.task not in core.tasks:
            jobs[count.task] = jobs.get(count.task, 0) + count.jobs
    for task, number in sorted(jobs.items()):
        yield warn(
            "tasks",
            f"{plural(number, 'unfinished job')} of task {task!r}, which this app does not have"
            + near(task, core.tasks),
            "run a worker that has it, or cancel them: `treadle jobs cancel --task ...`",
        )


def _without_rule(core: AppCore, stats: Stats) -> Iterator[Check]:
    for task, limit, guess in without_rule(core.tasks, frozenset(use.rule.name for use in stats.limits)):
        yield warn(
            "limits",
            f"task {task!r} names the limit {limit!r}, which has no rule{guess}",
            f"{command('limits', 'set', limit, options=['--slots', 'N'])}, or correct the name",
        )


async def _lost(core: AppCore) -> Check:
    """The check for jobs whose lease expired more than once, or that failed for it: they may kill their workers."""
    unfinished = await core.jobs.list(state=("running", "ready"), order="oldest", limit=LOOKED_AT)
    ended = await core.jobs.list(state="failed", order="ended", limit=LOOKED_AT)
    again = [row for row in unfinished.records if row.lost > 1] + [row for row in ended.records if row.reason == "lost"]
    if again:
        tasks = ", ".join(sorted({row.job.task for row in again})[:5])
        their = "its" if len(again) == 1 else "their"
        return warn(
            "lost",
            f"{plural(len(again), 'job')} lost {their} worker more than once ({tasks})",
            "the jobs may kill their workers, for example by using too much memory: "
            + command("jobs", "show", again[0].id),
        )
    return ok("lost", "no job lost its worker more than once")


def bounds(stats: Stats) -> Iterator[Check]:
    """A warning for each queue that is full or nearly so; one line for the others, if any queue has a bound."""
    bounds, waiting, oldest = bounds_in(stats.limits), Counter[str](), dict[str, float]()
    for count in stats.counts:
        if count.state is State.READY:
            waiting[count.queue] += count.jobs
            oldest[count.queue] = max(oldest.get(count.queue, 0.0), count.oldest or 0.0)
    named = {name.partition(":")[2] for name in bounds} - {""}
    bounded = {queue: rule for queue in {*waiting, *named} if (rule := bound_of(bounds, queue)) is not None}
    with_room = 0
    for queue, rule in sorted(bounded.items()):
        if waiting[queue] < NEARLY * (rule.max_waiting or 0):
            with_room += 1
        else:
            yield _full_queue(queue, rule, waiting[queue], oldest.get(queue, 0.0))
    if with_room:
        yield ok("bounds", f"{plural(with_room, 'bounded queue')} with room")


def _full_queue(queue: str, rule: Limit, waiting: int, oldest: float) -> Check:
    most = rule.max_waiting or 0
    raised = set_limit(rule, max_waiting=min(2 * most, defaults.MAX_COUNT))
    does = "new jobs are refused" if rule.when_full == "refuse" else "queued jobs are cancelled for new ones"
    since = f", the first for {lasts(oldest)}" if oldest else ""
    return warn(
        "bounds",
        f"queue {queue!r} is {'full' if waiting >= most else 'nearly full'}: {waiting:,} of {most:,} jobs wait{since}"
        f"{f'; {does}' if waiting >= most else ''}",
        f"add workers, enqueue less, or double the bound: {raised}",
    )


def warnings(core: AppCore, stats: Stats) -> int:
    """The number of warnings among the checks of OF_COUNTS, without another read."""
    shown = (*of_counts(core, stats, bool(core.tasks)), *failed(stats), *bounds(stats))
    return sum(check.verdict != "ok" for check in shown)


def others(checks: Iterable[Check]) -> int:
    """The number of warnings and failures among all other checks."""
    return sum(check.verdict != "ok" and check.name not in OF_COUNTS for check in checks)
