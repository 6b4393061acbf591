"""The ranges of names, numbers and sizes in rows and calls. Each check raises BadOption, or TooLarge for a size.

The server checks what its protocols receive (`server/row_checks.py`), and every storage its arguments
(`storage/value_checks.py`). Stored rows are not checked, and an outcome may name any id.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Final, get_args

from msgspec import Meta

from treadle.core import defaults, ids
from treadle.core.errors import BadOption, TooLarge
from treadle.core.limit_model import Declare, Limit, LimitChange, Pause, Resume, WhenFull
from treadle.core.long_numbers import MOST_DIGITS, WORDS, has_long_number
from treadle.core.model import Claim, LeaseRenewal, NewJob, Outcome, Pairs, Presence
from treadle.core.placement import MOST_WORDS, amounts, check_needs, label_text, labels_of
from treadle.core.query_model import MetricsRow, Query

MOST_AFTER: Final = 100_000  # jobs that one job waits for
MOST_LABELS: Final = defaults.MAX_LABELS + 1  # a tick has one more label than its job
MOST_HEADERS: Final = 8 * defaults.MAX_HEADERS  # bytes; a child has its ancestors' headers in addition to its own
MOST_CALL: Final = 10_000  # jobs of a claim, ids of a call, tasks of a worker
MOST_QUEUES: Final = 1_000  # queues of a worker; its claims also name the system queue
MOST_CONCURRENCY: Final = MOST_CALL  # jobs that one worker runs at once: each claim and heartbeat names all of them
MOST_KEY: Final = 2 * defaults.MAX_NAME + 1  # a task name, a space and a key
MOST_WORKER: Final = 2 * defaults.MAX_NAME  # a worker's name and the suffix of its claim ids
MOST_TEXT: Final = 2**20  # characters of a note or an error
MOST_CHECKPOINTS: Final = defaults.MAX_MEMO + 2**20  # characters of all checkpoints of one outcome
MOST_METRICS: Final = 2**20  # bytes of one row of metrics
LONGEST_TTL: Final = 86_400.0  # s for which a worker without heartbeats is listed
STRIDES: Final = (0.001, 1000.0)  # 1 / the weight of a lane
COUNT: Final = 2**31 - 2  # one less than the largest 32-bit integer
OWN: Final = "treadle."  # prefix of system tasks and system limits
CONTROL: Final = re.compile("[\0-\x08\x0a-\x1f\x7f-\x9f\ud800-\udfff]")  # a header may contain a tab
FAR: Final = 1e12  # s since 1970: 30,000 years
MOMENTS: Final = (-defaults.MAX_DELAY, 100 * defaults.MAX_DELAY)  # s since 1970 of an instant
Natural = Annotated[int, Meta(ge=0, le=2**53 - 1)]  # in stored JSON: Python reads larger ones than it can write
WHEN_FULL: Final = get_args(WhenFull)
LONGEST: Final = 31 * 86_400.0  # s; an exact window keeps every start for this long


def a_name(option: str, value: str, most: int = defaults.MAX_NAME) -> None:
    """Require 1 to `most` printable characters."""
    if not 0 < len(value) <= most or not value.isprintable():
        raise BadOption(option, f"expected 1-{most} printable characters, found {shown(value)}")


def an_id(option: str, value: str) -> None:
    if not ids.VALID.fullmatch(value):
        raise BadOption(option, f"expected 1-255 characters A-Z a-z 0-9 . _ : @ -, found {shown(value)}")


def a_span(option: str, value: float | None, least: float = 0.0, most: float = defaults.MAX_DELAY) -> None:
    if value is not None and not least <= value <= most:
        raise BadOption(option, f"expected {least:g} to {most:,.0f} seconds, found {value!r:.60}")


def a_count(option: str, value: int | None, least: int = 0, most: int = defaults.MAX_COUNT) -> None:
    if value is not None and not least <= value <= most:
        raise BadOption(option, f"expected {least:,} to {most:,}, found {value!r:.60}")


def a_text(option: str, value: str | None, most: int, json: bool = False) -> None:
    """Require at most `most` characters, all of which UTF-8 can encode; in JSON no number that is too long to be
    read."""
    if value is None:
        return
    if len(value) > most:
        raise TooLarge(option, len(value), most)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            problem = f"expected a text that UTF-8 can hold, found half of a character ({value[error.start]!r})"
            raise BadOption(option, problem) from None
    if json and has_long_number(value):
        raise BadOption(option, WORDS)


def _a_stored_id(value: str) -> None:
    """Require a text that every storage can look up."""
    a_text("id", value, defaults.MAX_NAME)
    if "\0" in value:
        raise BadOption("id", f"expected a text without U+0000, found {shown(value)}")


def at_most(option: str, values: Any, most: int) -> None:
    if len(values) > most:
        raise BadOption(option, f"expected at most {most:,}, found {len(values):,}")


def shown(value: str) -> str:
    return repr(value if len(value) <= 60 else value[:57] + "...")


def check_job(job: NewJob) -> None:  # noqa: C901 - all fields in one function: a call for each takes twice the time
    """Raise BadOption or TooLarge for a job with a field out of range."""
    if not _is_id(job.id):
        an_id("id", job.id)
    if not 0 < len(job.queue) <= defaults.MAX_NAME or not job.queue.isprintable():
        a_name("queue", job.queue)
    task = job.task
    if task and (len(task) > defaults.MAX_NAME or " " in task or not task.isprintable()):
        a_name("task", task)
        raise BadOption("task", f"expected a name without spaces, found {shown(task)}")
    if len(job.payload) > MOST_DIGITS or not job.payload.isascii():
        a_text("payload", job.payload, defaults.MAX_PAYLOAD, json=True)
    if job.priority:
        a_count("priority", job.priority, *defaults.PRIORITY_RANGE)
    if not (0 <= job.delay <= _MOST and 0 <= job.keep <= _MOST and 0 <= job.keep_failed <= _MOST):
        for option, span in (("delay", job.delay), ("keep", job.keep), ("keep_failed", job.keep_failed)):
            a_span(option, span)
    if job.key is not None:
        a_name("key", job.key, MOST_KEY)
    if job.aging or not (job.lease is job.deadline is job.key_window is job.run_at is job.deadline_at is None):
        _check_spans(job)
    if job.after or job.required is not None or job.failures_allowed or job.wait_timeout is not None:
        _check_waiting(job)
    if job.limits or job.lane is not None or job.stride != 1.0:
        _check_admission(job)
    if job.labels or job.headers:
        _check_words(job)
    if job.root is not None and not _is_id(job.root):
        an_id("root", job.root)
    if job.parent is not None and not _is_id(job.parent):
        an_id("parent", job.parent)
    if job.nonce is not None or job.retry is not None:
        if job.nonce is not None:
            a_name("nonce", job.nonce)
        a_text("retry", job.retry, MOST_TEXT)


_is_id = ids.VALID.fullmatch
_MOST: Final = defaults.MAX_DELAY


def _check_words(job: NewJob) -> None:
    at_most("labels", job.labels, MOST_LABELS)
    for label in job.labels:
        a_name("labels", label)
    if job.headers:
        _check_headers(job.headers)


def _check_spans(job: NewJob) -> None:
    a_span("aging", job.aging)
    a_span("key_window", job.key_window)
    a_span("deadline", job.deadline)
    a_span("run_at", job.run_at, *MOMENTS)
    a_span("deadline_at", job.deadline_at, *MOMENTS)
    if job.deadline_at is not None and job.deadline is None:
        raise BadOption("deadline_at", "expected `deadline` as well, in seconds, found only the instant")
    if job.lease is not None and not 0 < job.lease <= defaults.MAX_DELAY:
        raise BadOption("lease", f"expected more than 0 s, found {job.lease!r:.60}")


def _check_waiting(job: NewJob) -> None:
    at_most("after", job.after, MOST_AFTER)
    for up in job.after:
        if not _is_id(up):
            an_id("after", up)
    a_count("required", job.required)
    a_count("failures_allowed", job.failures_allowed)
    a_span("wait_timeout", job.wait_timeout)


def _check_admission(job: NewJob) -> None:
    at_most("limits", job.limits, defaults.MAX_LIMITS)
    for name, cost in job.limits:
        a_name("limits", name)
        if name.startswith(OWN):
            raise BadOption(
                "limits", f"{shown(name)}: names that begin with {OWN!r} are Treadle's own; choose another name"
            )
        if name.partition(":")[0] == "queue":
            problem = "the limit of a queue applies to all its jobs; do not name it in limits="
            raise BadOption("limits", f"{shown(name)}: {problem}")
        a_count("cost", cost, 1)
    if job.lane is not None:
        a_name("lane", job.lane)
    a_span("stride", job.stride, *STRIDES)


def _check_headers(headers: Pairs) -> None:
    size = 0
    for name, value in headers:
        a_name("headers", name)
        if CONTROL.search(value) is not None:
            problem = f"{shown(name)}: expected a text without control characters, found {value!r:.60}"
            raise BadOption("headers", problem)
        size += len(name.encode()) + len(value.encode())
    if size > MOST_HEADERS:
        raise TooLarge("headers", size, MOST_HEADERS)


def check_outcome(out: Outcome) -> None:
    """Raise BadOption or TooLarge for an outcome with a field out of range, or with such a follow-up job."""
    if not out.id.isprintable() or len(out.id) > defaults.MAX_NAME:
        _a_stored_id(out.id)
    if not (0 <= out.version <= COUNT and 0 <= out.attempt <= COUNT and 0 <= out.delay <= _MOST):
        a_count("version", out.version, -COUNT, COUNT)
        a_count("attempt", out.attempt, 0, COUNT)
        a_span("delay", out.delay)
    if out.result is not None and (len(out.result) > MOST_DIGITS or not out.result.isascii()):
        a_text("result", out.result, defaults.MAX_RESULT, json=True)
    if out.value is not None or out.error is not None or out.reason is not None or out.note is not None:
        a_text("value", out.value, defaults.MAX_RESULT, json=True)
        a_text("error", out.error, MOST_TEXT)
        a_text("reason", out.reason, MOST_WORKER)
        a_text("note", out.note, MOST_TEXT)
    if out.keep is not None or out.required is not None or out.failures_allowed:
        a_span("keep", out.keep)
        a_count("required", out.required)
        a_count("failures_allowed", out.failures_allowed)
    if out.checkpoints:
        check_checkpoints(out.checkpoints)
    if out.spent:
        at_most("spent", out.spent, defaults.MAX_LIMITS)
        for name, cost in out.spent:
            a_name("spent", name)
            a_count("spent", cost)
    if out.after or out.followups:
        at_most("after", out.after, MOST_AFTER)
        for up in out.after:
            an_id("after", up)
        at_most("followups", out.followups, MOST_AFTER)
        for job in out.followups:
            check_job(job)


def check_checkpoints(checkpoints: Pairs) -> None:
    at_most("checkpoints", checkpoints, 2 * defaults.MAX_STEPS)
    a_text("checkpoints", "".join(map("".join, checkpoints)), MOST_CHECKPOINTS)
    for name, text in checkpoints:
        if len(text) > MOST_DIGITS and has_long_number(text):
            raise BadOption("checkpoints", f"{shown(name)}: {WORDS}")
        if "\0" in name:
            raise BadOption("checkpoints", f"expected a name without U+0000, found {shown(name)}")


def check_renewal(renewal: LeaseRenewal) -> None:
    """Raise BadOption or TooLarge for a renewal with a field out of range."""
    _a_stored_id(renewal.id)
    a_count("version", renewal.version, -COUNT, COUNT)
    a_text("note", renewal.note, MOST_TEXT)
    if renewal.checkpoints:
        check_checkpoints(renewal.checkpoints)


def check_claim(ask: Claim, most: int = MOST_CALL) -> None:
    """Raise BadOption for a claim with a field out of range. `most`: jobs of one claim."""
    a_name("worker", ask.worker, MOST_WORKER)
    at_most("queues", ask.queues, MOST_QUEUES + 1)
    for queue, share in ask.queues:
        if not 0 <= share <= COUNT or not 0 < len(queue) <= defaults.MAX_NAME or not queue.isprintable():
            a_name("queues", queue)
            a_count("queues", share, 0, COUNT)
    tasks, longest = ask.tasks or {}, defaults.MAX_NAME
    at_most("tasks", tasks, MOST_CALL)
    for task, (room, lease) in tasks.items():
        if len(task) > longest or not task.isprintable():  # "": a promise, which no worker runs
            a_name("tasks", task)
        if room is not None and not 0 <= room <= COUNT:
            a_count("tasks", room, 0, COUNT)
        if lease is not None:
            a_span("lease", lease)
    a_count("limit", ask.limit, 0, most)
    a_span("lease", ask.lease)
    if ask.hand_off is not None:
        a_span("hand_off", ask.hand_off[1])
    if ask.ids:
        check_ids("ids", ask.ids, max(most, MOST_CALL))
    if ask.running:
        check_ids("running", ask.running, MOST_AFTER)


def check_change(change: LimitChange) -> None:
    """Raise BadOption for a change with a name or a number out of range."""
    rule = change.rule if isinstance(change, Declare) else change
    name = rule.name
    if not 0 < len(name) <= 2 * defaults.MAX_NAME or not name.isprintable():
        raise BadOption("limit name", f"expected 1-{2 * defaults.MAX_NAME} printable characters, found {name!r:.60}")
    if isinstance(rule, Pause | Resume) and rule.until is not None and not abs(rule.until) <= FAR:
        raise BadOption(f"limit {name!r}", f"until: expected a time in seconds since 1970, found {rule.until!r:.60}")
    if isinstance(rule, Limit):
        if not 0 < rule.per <= LONGEST:
            raise BadOption(f"limit {rule.name!r}", f"per: expected seconds, at most 31 days, found {rule.per!r:.60}")
        for name, value in (("slots", rule.slots), ("rate", rule.rate), ("burst", rule.burst)):
            if value is not None and not 0 <= value <= defaults.MAX_COUNT:
                raise BadOption(
                    f"limit {rule.name!r}", f"{name}: expected 0 to {defaults.MAX_COUNT:,}, found {value!r}"
                )
        if rule.max_waiting is not None or rule.when_full != "refuse":
            check_bound(rule)


def check_bound(rule: Limit) -> None:
    """Raise BadOption for a bound that is out of range, or not of a queue."""
    option, most = f"limit {rule.name!r}", rule.max_waiting
    if rule.when_full not in WHEN_FULL:
        expected = ", ".join(map(repr, WHEN_FULL))
        raise BadOption(option, f"when_full: expected one of {expected}, found {rule.when_full!r:.60}")
    if most is None:
        raise BadOption(option, f"when_full={rule.when_full!r} needs max_waiting")
    number: object = most
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= defaults.MAX_COUNT:
        raise BadOption(option, f"max_waiting: expected 1 to {defaults.MAX_COUNT:,}, found {most!r:.60}")
    if rule.name.partition(":")[0] != "queue":
        problem = "only a queue has max_waiting: name the limit 'queue:NAME', or 'queue' for each queue without its own"
        raise BadOption(option, problem)


def check_presence(worker: Presence) -> None:
    """Raise BadOption or TooLarge for a worker with a field out of range."""
    a_name("worker", worker.worker)
    if worker.host:
        a_name("host", worker.host)
    if worker.draining:
        a_name("draining", worker.draining)
    at_most("queues", worker.queues, MOST_QUEUES)
    at_most("tasks", worker.tasks, MOST_CALL)
    at_most("gathering", worker.gathering, MOST_CALL)
    at_most("versions", worker.versions, MOST_CALL)
    _check_place(worker)
    for version in filter(None, worker.versions):
        a_name("versions", version)
    for option, names in (("queues", worker.queues), ("tasks", worker.tasks)):
        for name in names:
            a_name(option, name)
    for task, since, until in worker.gathering:
        a_name("gathering", task)
        a_span("gathering", since, -defaults.MAX_DELAY)
        a_span("gathering", until, -defaults.MAX_DELAY)
    for option, count in (("pid", worker.pid), ("slots", worker.slots), ("running", worker.running)):
        a_count(option, count, 0, COUNT)
    for option, span in (("uptime", worker.uptime), ("paused", worker.paused), ("age", worker.age)):
        a_span(option, span)
    if not 0 < worker.ttl <= LONGEST_TTL:
        raise BadOption("ttl", f"expected more than 0 and at most {LONGEST_TTL:,.0f} seconds, found {worker.ttl!r:.60}")


def _check_place(worker: Presence) -> None:
    at_most("labels", worker.labels, MOST_WORDS)
    labels_of([label_text(*label) for label in worker.labels])
    at_most("resources", worker.resources, MOST_WORDS)
    amounts({name: has for name, has, _ in worker.resources}, "resources")
    amounts({name: used for name, _, used in worker.resources}, "resources")
    at_most("needs", worker.needs, MOST_CALL)
    for needs in worker.needs:
        a_name("needs", needs.task)
        check_needs(needs)
    if worker.reserved:
        a_name("reserved", worker.reserved)


def check_query(query: Query) -> None:
    """Raise BadOption or TooLarge for a query with a field out of range."""
    check_ids("ids", query.ids)
    for option, name in (
        ("task", query.task),
        ("queue", query.queue),
        ("root", query.root),
        ("parent", query.parent),
        ("label", query.label),
        ("ahead_of", query.ahead_of),
    ):
        a_text(option, name, MOST_KEY)
        if name is not None and "\0" in name:
            raise BadOption(option, f"expected a text without U+0000, found {shown(name)}")
    a_text("cursor", query.cursor, MOST_TEXT)
    a_count("limit", query.limit, 0, MOST_CALL)
    a_count("scan", query.scan, 1, COUNT)
    for option, moment in (("before", query.before), ("since", query.since)):
        a_span(option, moment, *MOMENTS)


def check_metrics(row: MetricsRow) -> None:
    """Raise BadOption or TooLarge for a row of metrics with a field out of range."""
    if not abs(row.at) <= FAR:
        raise BadOption("at", f"expected a time in seconds since 1970, found {row.at!r:.60}")
    if not 0 < row.span <= LONGEST:
        raise BadOption("span", f"expected more than 0 s and at most 31 days, found {row.span!r:.60}")
    if row.source:
        a_name("source", row.source)
    if len(row.data) > MOST_METRICS:
        raise TooLarge("data", len(row.data), MOST_METRICS)


def check_ids(option: str, all_ids: Iterable[str], most: int = MOST_CALL) -> None:
    """Raise BadOption or TooLarge for more ids than one call takes, or for an id that is too long."""
    at_most(option, named := list(all_ids), most)
    joined = "".join(named)
    if not joined.isascii() or len(joined) > defaults.MAX_NAME:
        for id in named:
            a_text(option, id, defaults.MAX_NAME)
