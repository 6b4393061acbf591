"""The options of a job: their names, their ranges, and their conversion to the fields of a row.

An invalid option raises BadOption in the call that sets it, before the storage is involved.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypedDict, cast

from msgspec import UNSET
from msgspec.structs import asdict

from treadle.core import defaults, ids
from treadle.core.argument_names import Spelled
from treadle.core.errors import BadOption, TooLarge
from treadle.core.ranges import CONTROL, MOST_AFTER, OWN, at_most
from treadle.policy.retry import Policy, Retry, seconds, span_and_instant
from treadle.tasks.when import HasId, When

Seconds = float | timedelta


class Key(Spelled, frozen=True):
    """At most one unfinished job of a task per key.

    key       1-255 printable characters
    conflict  if the key is held: "keep" returns the holder; "replace" cancels it, or waits for it if it is running;
              "raise" raises KeyHeld and stores nothing
    window    s after its creation during which the holder keeps the key even if it has ended
    until     "ended", or "started": the key is free as soon as the job runs
    shared    the key is shared by all tasks
    """

    key: str
    conflict: Literal["keep", "replace", "raise"] = "keep"
    window: float | timedelta | None = None
    until: Literal["ended", "started"] = "ended"
    shared: bool = False


class Options(TypedDict, total=False):
    """All options of a job. They are merged in this order: constants of the task, computed options, `.options()`. A
    plain number of `Seconds` is in seconds."""

    queue: str
    priority: int
    delay: Seconds
    run_at: datetime
    deadline: datetime
    expires: Seconds
    timeout: Seconds | None
    retry: Retry
    lease: Seconds
    max_lost: int
    key: str | Key | None
    lane: str | tuple[str, float] | None
    limits: Sequence[str] | Mapping[str, int]
    cost: int
    aging: Seconds
    keep: Seconds
    keep_failed: Seconds
    after: Sequence[HasId | str] | HasId | str
    when: When
    wait_timeout: Seconds
    pass_result: bool
    inline: bool
    labels: Iterable[str] | Mapping[str, object]
    headers: Mapping[str, str]
    id: str
    within: Any  # a transaction of the user; belongs to the call, not to the job


NAMES = frozenset(Options.__annotations__)


class Sizes(Spelled, frozen=True):
    """The largest texts that an app accepts, in bytes: the defaults are the maximum. Raises BadOption.

    step   the stored result of one step; `checkpoints`: the results of all steps of a job together
    steps  the number of steps of a job
    """

    payload: int = defaults.MAX_PAYLOAD
    result: int = defaults.MAX_RESULT
    headers: int = defaults.MAX_HEADERS
    step: int = defaults.MAX_STEP
    checkpoints: int = defaults.MAX_MEMO
    steps: int = defaults.MAX_STEPS

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            most: int = Sizes.__struct_defaults__[Sizes.__struct_fields__.index(name)]
            if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= most:
                unit = "" if name == "steps" else " bytes"
                raise BadOption(f"sizes.{name}", f"expected 1 to {most:,}{unit}, found {value!r}")


def name_of(value: object, option: str) -> str:
    """The name, if it has 1-255 printable characters and no white space at its ends. Raises BadOption if not."""
    if (
        isinstance(value, str)
        and 0 < len(value) <= defaults.MAX_NAME
        and value == value.strip()
        and value.isprintable()
    ):
        return value
    shown = value if not isinstance(value, str) or len(value) <= 60 else value[:57] + "..."
    raise BadOption(option, f"expected a name of 1-{defaults.MAX_NAME} printable characters, found {shown!r}")


def _queue(value: object) -> str:
    name = name_of(value, "queue")
    if name == defaults.SYSTEM_QUEUE:
        raise BadOption("queue", f"{name!r} is the queue of Treadle's own jobs; choose another name")
    return name


def _priority(value: object) -> int:
    low, high = defaults.PRIORITY_RANGE
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise BadOption("priority", f"expected {low} to {high}, found {value!r}")
    return value


def _timeout(value: object) -> float | None:
    length = None if value is None else seconds(value, "timeout")
    if length == 0:
        raise BadOption("timeout", "expected more than 0 s, or None for no limit")
    return length


def _lease(value: object) -> float:
    length = seconds(value, "lease")
    if length == 0:
        raise BadOption("lease", "expected more than 0 s")
    return length


def _labels(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        raise BadOption("labels", f"expected a list of labels or a mapping, found the text {value!r}")
    if isinstance(value, Mapping):
        texts = [f"{key}={part}" for key, part in value.items()]
    elif isinstance(value, Iterable):
        texts = list(value)
    else:
        raise BadOption("labels", f"expected a list of labels or a mapping, found {value!r}")
    labels = tuple(dict.fromkeys(name_of(label, "labels") for label in texts))
    if len(labels) > defaults.MAX_LABELS:
        raise BadOption("labels", f"expected at most {defaults.MAX_LABELS}, found {len(labels)}")
    return labels


def _headers(value: object, most: int) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, Mapping):
        raise BadOption("headers", f"expected a mapping of text to text, found {value!r}")
    for name, text in value.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise BadOption("headers", f"expected text to text, found {name!r}: {text!r}")
        name_of(name, "headers")
        if CONTROL.search(text) is not None:
            raise BadOption("headers", f"{name!r}: expected a text without control characters, found {text!r:.60}")
    size = sum(len(name.encode()) + len(text.encode()) for name, text in value.items())
    if size > most:
        raise TooLarge("headers", size, most)
    return tuple(value.items())


def _cost(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= defaults.MAX_COUNT:
        raise BadOption("cost", f"expected 1 to {defaults.MAX_COUNT:,}, found {value!r}")
    return value


def limits_of(value: object, cost: object) -> tuple[tuple[str, int], ...]:
    """These limits, with the cost of a job or a step; a mapping has a cost for each of them. Raises BadOption."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise BadOption("limits", f"expected limit names, or {{name: cost}}, found {value!r}")
    if isinstance(value, Mapping):
        names = {name_of(name, "limits"): _cost(own) for name, own in value.items()}
    else:
        names = dict.fromkeys([name_of(name, "limits") for name in value], _cost(cost))
    if len(names) > defaults.MAX_LIMITS:
        raise BadOption("limits", f"expected at most {defaults.MAX_LIMITS}, found {len(names)}")
    for name in names:
        if name.startswith(OWN):
            raise BadOption("limits", f"{name!r}: names that begin with {OWN!r} are Treadle's own; choose another name")
        if name.partition(":")[0] == "queue":
            problem = "the limit of a queue applies to all its jobs; do not name it in limits="
            raise BadOption("limits", f"{name!r}: {problem}")
    return tuple(names.items())


def _lane(value: object) -> dict[str, Any]:
    """A name, or (name, weight): the number of its jobs that run per job of a lane with weight 1."""
    name, weight = value if isinstance(value, tuple | list) and len(value) == 2 else (value, 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0.001 <= weight <= 1000:
        raise BadOption("lane", f"expected a name, or (name, weight of 0.001 to 1000), found {value!r}")
    return {"lane": None if name is None else name_of(name, "lane"), "stride": 1 / weight}


def _key(value: object, task: str) -> dict[str, Any]:
    if value is None:
        return {}
    if isinstance(value, str):
        return {"key": f"{task} {name_of(value, 'key')}"}
    if not isinstance(value, Key):
        raise BadOption("key", f"expected a text or a Key, found {value!r}")
    key = value
    if key.conflict not in ("keep", "replace", "raise") or key.until not in ("ended", "started"):
        raise BadOption(
            "key", f'expected conflict "keep", "replace" or "raise", until "ended" or "started", found {key!r}'
        )
    name_of(key.key, "key")
    # All keys share one name space. A task name has no space, so the first one separates task and key.
    return {
        "key": f"{'' if key.shared else task} {key.key}",
        "key_conflict": key.conflict,
        "key_window": None if key.window is None else seconds(key.window, "key.window"),
        "key_until": key.until,
    }


def _after(value: Any, when: object) -> dict[str, Any]:
    upstreams = [value] if isinstance(value, str) or not isinstance(value, Iterable) else list(value)
    named = [upstream if isinstance(upstream, str) else getattr(upstream, "id", None) for upstream in upstreams]
    for upstream, id in zip(upstreams, named, strict=True):
        if not isinstance(id, str) or not ids.VALID.fullmatch(id):
            raise BadOption("after", f"expected jobs, specs or ids, found {upstream!r}")
    after = tuple(dict.fromkeys(named))
    at_most("after", after, MOST_AFTER)
    if not isinstance(when, When):
        raise BadOption("when", f"expected all_succeeded(), all_done() or at_least(n), found {when!r}")
    required, failures_allowed = when.threshold(len(after))
    return {"after": after, "required": required, "failures_allowed": failures_allowed}


def _retry(value: object) -> Retry:
    if not isinstance(value, Retry):
        raise BadOption("retry", f"expected Retry(...), found {value!r}")
    return value


def _max_lost(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadOption("max_lost", f"expected 1 or more, or 0 for any number, found {value!r}")
    return value


def flag(options: Options, name: Literal["inline", "pass_result"]) -> bool:
    """A boolean option. Raises BadOption for any other value."""
    value: object = options.get(name, False)
    if not isinstance(value, bool):
        raise BadOption(name, f"expected True or False, found {value!r}")
    return value


def policy_of(options: Options) -> Policy:
    """The retry policy, timeout and `max_lost` that these options set. Raises BadOption."""
    return Policy(
        retry=_retry(options["retry"]) if "retry" in options else UNSET,
        timeout=_timeout(options["timeout"]) if "timeout" in options else UNSET,
        max_lost=_max_lost(options["max_lost"]) if "max_lost" in options else UNSET,
        pass_result=flag(options, "pass_result"),
    )


def split_within(options: Options) -> tuple[Options, Any]:
    """The options of the job, and the transaction in which it is sent. Raises BadOption."""
    rest = dict(options)
    within = rest.pop("within")
    if within is None:
        raise BadOption("within", "expected a connection or session with an open transaction, found None")
    return cast("Options", rest), within


def refuse_within(within: object) -> None:
    """Raise BadOption for a `within` option of a job that is not sent yet."""
    if within is not None:
        raise BadOption("within", "belongs to the call that enqueues: app.enqueue(task.job(...), within=session)")


def merge(below: Options, above: Options) -> Options:
    """The options of both. `above` wins, retry field by field; its `delay` or `expires` also removes the `run_at` or
    `deadline` of `below`."""
    merged: dict[str, Any] = {**below, **above}
    if "retry" in below and "retry" in above:
        merged["retry"] = _retry(above["retry"]).over(_retry(below["retry"]))
    for span, moment in (("delay", "run_at"), ("expires", "deadline")):
        if span in above and moment not in above:
            merged.pop(moment, None)
    return cast("Options", merged)


def completed(own: Options, constants: Options) -> Options:
    """`own` with those constants that belong to one of its options: `cost`, `limits` and `when`. Raises BadOption."""
    if "when" in own and "after" not in own:
        raise BadOption("when", "needs after=, because it says how many of those jobs must have ended")
    partners: dict[str, Any] = {}
    for one, other in (("limits", "cost"), ("cost", "limits"), ("after", "when")):
        if one in own and other not in own and other in constants:
            partners[other] = cast("dict[str, Any]", constants)[other]
    return cast("Options", {**partners, **own}) if partners else own


def check_names(options: Mapping[str, object], beside: Collection[str] = ()) -> None:
    """Raise BadOption for an unknown option. `beside`: other arguments that the call takes by name."""
    for name in options:
        if name not in NAMES:
            known = ", ".join(sorted(NAMES.union(beside)))
            raise BadOption(name, f"unknown option{meant(name, beside)}; expected one of {known}")


# The names of options in other job queues, with the names here.
ELSEWHERE: Final = {
    "max_retries": "retry=Retry(attempts=...), which also counts the first attempt",
    "attempts": "retry=Retry(attempts=...)",
    "retries": "retry=Retry(attempts=...), which also counts the first attempt",
    "countdown": "delay=",
    "eta": "run_at=",
    "retry_backoff": "retry=Retry(base=..., factor=..., max=...)",
    "time_limit": "timeout=",
    "rate_limit": "limits=",
    "soft_time_limit": "timeout=",
    "unique": "key=",
    "tags": "labels=",
    "ttl": "keep=",
    "result_ttl": "keep=",
    "job_id": "id=",
    "task_id": "id=",
    "tenant": "lane=",
    "depends_on": "after=",
    "requires": "requires= of @app.task: a worker claims by task, so all jobs of a task require the same",
    "uses": "uses= of @app.task: a worker claims by task, so all jobs of a task use the same",
    "constraints": "requires= of @app.task",
    "worker_labels": "requires= of @app.task",
    "desired_worker_labels": "requires= of @app.task",
    "resources": "uses= of @app.task",
    "num_gpus": 'uses={"gpu": ...} of @app.task',
    "num_cpus": 'uses={"cpu": ...} of @app.task',
    "memory": 'uses={"memory_mb": ...} of @app.task',
    "bind": "current(), called inside the task",
    "autoretry_for": "on_error= (every exception is retried by default)",
}


def meant(name: str, beside: Collection[str] = ()) -> str:
    """`; did you mean ...?` for an unknown option, or ""."""
    close = difflib.get_close_matches(name, sorted(NAMES.union(beside)), 1)
    instead = ELSEWHERE.get(name) or (f"{close[0]}=" if close else None)
    return f"; did you mean {instead}?" if instead else ""


_PLAIN: dict[str, Callable[[Any], Any]] = {
    "queue": _queue,
    "priority": _priority,
    "delay": lambda value: seconds(value, "delay"),
    "lease": _lease,
    "aging": lambda value: seconds(value, "aging"),
    "keep": lambda value: seconds(value, "keep"),
    "keep_failed": lambda value: seconds(value, "keep_failed"),
    "wait_timeout": lambda value: seconds(value, "wait_timeout"),
    "labels": _labels,
}


def columns(options: Options, policy: Policy, task: str, now: float, sizes: Sizes) -> dict[str, Any]:
    """Options as fields of NewJob. `policy` has only the values that differ from the task's own, and only these go into
    the row, so a deploy can change the policy of stored jobs. Raises BadOption or TooLarge, which name the option."""
    check_names(options)
    known = cast("dict[str, Any]", options)
    fields: dict[str, Any] = {name: convert(known[name]) for name, convert in _PLAIN.items() if name in known}
    if "run_at" in options:
        fields["delay"], fields["run_at"] = span_and_instant(options["run_at"], "run_at", now)
    if "deadline" in options:
        fields["deadline"], fields["deadline_at"] = span_and_instant(options["deadline"], "deadline", now)
    elif "expires" in options:
        fields["deadline"] = seconds(options["expires"], "expires")
    if "limits" in options or "cost" in options:
        fields["limits"] = limits_of(options.get("limits", ()), options.get("cost", 1))
    if "headers" in options:
        fields["headers"] = _headers(options["headers"], sizes.headers)
    if "lane" in options:
        fields.update(_lane(options["lane"]))
    if "key" in options:
        fields.update(_key(options["key"], task))
    if "after" in options:
        fields.update(_after(options["after"], options.get("when", When())))
    if "id" in options:
        wrong = ids.problem(options["id"])
        if wrong:
            raise BadOption("id", wrong)
        fields["id"] = options["id"]
    if fields.get("id", "") in fields.get("after", ()):
        raise BadOption("after", f"a job cannot wait for itself ({fields['id']})")
    fields["retry"] = policy.text()
    return fields
