"""Words of the sentences: counts, moments, durations, and the commands that change a situation."""

from __future__ import annotations

from treadle.core.claim_ids import worker_name
from treadle.core.clock import moment_text
from treadle.core.command_lines import command
from treadle.core.defaults import SYSTEM_QUEUE
from treadle.core.limit_model import Limit
from treadle.core.model import Record

MOST_AHEAD = 10_000  # queued jobs ahead of a job that are counted


def count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def jobs(ahead: int) -> str:
    return f"{ahead:,}+ jobs" if ahead >= MOST_AHEAD else count(ahead, "job")


def at(seconds: float | None) -> str:
    return "an unknown time" if seconds is None else moment_text(seconds)


def lasting(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 10 else f"{max(0.0, seconds):.1f} s"


def named(row: Record) -> str:
    """A job by task and id."""
    return f"{row.job.task or 'promise'} {row.job.id}"


def worker_of(row: Record) -> str:
    """The name of the worker that holds a job, or held it last."""
    return worker_name(row.worker) or "?"


# --- commands


def on_job(verb: str, row: Record) -> str:
    return command("jobs", verb, row.job.id)


def resume(name: str) -> str:
    kind, _, queue = name.partition(":")
    return command("queues", "resume", queue) if kind == "queue" and queue else command("limits", "resume", name)


def set_limit(rule: Limit, slots: int | None = None, rate: int | None = None, max_waiting: int | None = None) -> str:
    """The command that sets this rule with more slots, a higher rate or a higher bound. It repeats the other values of
    the rule."""
    slots, rate = rule.slots if slots is None else slots, rule.rate if rate is None else rate
    options = [] if slots is None else ["--slots", str(slots)]
    if rate is not None:
        options += ["--rate", str(rate), "--per", f"{rule.per:.15g}"]
        options += ["--how", "bucket"] if rule.how == "bucket" else []
        options += ["--burst", str(max(rule.burst, rate))] if rule.burst is not None else []
    options += ["--hold", "ended"] if rule.hold == "ended" else []
    most = rule.max_waiting if max_waiting is None else max_waiting
    options += [] if most is None else ["--max-waiting", str(most)]
    options += ["--when-full", rule.when_full] if rule.when_full != "refuse" else []
    return command("limits", "set", rule.name, options=options)


def start_worker(queue: str, *options: str, app: str | None = None) -> str:
    """The command that starts a worker of a queue. A list of queues cannot hold a name with a comma, and none names
    the queue of Treadle's own jobs: there it is the command for the queues of all tasks."""
    parts = ("worker",) if app is None else ("worker", app)
    if queue == SYSTEM_QUEUE or "," in queue:
        return command(*parts, options=options)
    name = f"{queue}=1" if "=" in queue else queue  # the last `=` begins a weight
    return command(*parts, options=[*([f"--queues={name}"] if name.startswith("-") else ["--queues", name]), *options])
