"""Options: their ranges, which one wins, and which ones the row stores."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from treadle import App, BadOption, Key, Limit, Retry, Sizes, TooLarge, all_done, all_succeeded, at_least
from treadle.admin.limits import check
from treadle.core.model import NewJob
from treadle.policy.retry import Policy, read_policy
from treadle.storage.memory import MemoryStorage
from treadle.tasks.options import check_names
from treadle.tasks.task import Task
from treadle.testing import HandClock
from treadle_testkit.shows import shows

NOW = 1_700_000_000.0


def make(sizes: Sizes | None = None, **constants: Any) -> Task[[int], int, Any]:
    clock = HandClock(NOW)
    app = App(storage=MemoryStorage(clock), clock=clock, sizes=sizes)

    @app.task(name="t", **constants)
    async def t(n: int) -> int:
        return n

    return t


def new(constants: dict[str, Any] | None = None, **options: Any) -> NewJob:
    return make(**(constants or {})).options(**options).job(1).new


def policy(job: NewJob) -> Policy:
    return read_policy(job.retry)


def test_an_enqueue_without_options_stores_the_defaults() -> None:
    job = make().job(1).new
    assert job == NewJob(id=job.id, task="t", payload="[1]")


@pytest.mark.parametrize(
    ("option", "value", "field", "stored"),
    [
        ("queue", "mail", "queue", "mail"),
        ("priority", -32768, "priority", -32768),
        ("delay", timedelta(minutes=2), "delay", 120.0),
        ("run_at", datetime.fromtimestamp(NOW + 30, UTC), "delay", 30.0),
        ("run_at", datetime.fromtimestamp(NOW - 30, UTC), "delay", 0.0),
        ("deadline", datetime.fromtimestamp(NOW + 60, UTC), "deadline", 60.0),
        ("deadline", datetime.fromtimestamp(NOW - 60, UTC), "deadline", 0.0),
        ("expires", 5, "deadline", 5.0),
        ("lease", 3, "lease", 3.0),
        ("lane", "tenant-1", "lane", "tenant-1"),
        ("lane", None, "lane", None),
        ("aging", 2, "aging", 2.0),
        ("keep", 0, "keep", 0.0),
        ("keep_failed", 7, "keep_failed", 7.0),
        ("wait_timeout", 4, "wait_timeout", 4.0),
        ("limits", ["smtp", "tenant:4", "smtp"], "limits", (("smtp", 1), ("tenant:4", 1))),
        ("labels", ["a", "b", "a"], "labels", ("a", "b")),
        ("labels", {"user": 62, "plan": "pro"}, "labels", ("user=62", "plan=pro")),
        ("headers", {"trace": "1"}, "headers", (("trace", "1"),)),
        ("key", "x", "key", "t x"),
        ("key", Key("x y", shared=True), "key", " x y"),
        ("key", Key("x", window=timedelta(hours=1)), "key_window", 3600.0),
        ("key", Key("x", conflict="replace"), "key_conflict", "replace"),
        ("key", Key("x", until="started"), "key_until", "started"),
        ("after", "up", "after", ("up",)),
        ("after", ["a", "b", "a"], "after", ("a", "b")),
        ("id", "order:62", "id", "order:62"),
    ],
)
def test_an_option_as_a_field(option: str, value: Any, field: str, stored: object) -> None:
    assert getattr(new(**{option: value}), field) == stored
    if option not in ("run_at", "after", "id"):
        constant = make(**{option: value}).job(1).new
        assert getattr(constant, field) == stored


@shows("an option of a wrong type or range raises `BadOption` where it is written")
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("queue", ""),
        ("queue", 5),
        ("queue", " x"),
        ("queue", "a\nb"),
        ("queue", "q" * 256),
        ("priority", 32768),
        ("priority", True),
        ("priority", 1.0),
        ("delay", -1),
        ("delay", "5"),
        ("delay", float("nan")),
        ("delay", 1e12),
        ("run_at", datetime(2030, 1, 1)),  # noqa: DTZ001
        ("run_at", 5.0),
        ("deadline", datetime(2030, 1, 1)),  # noqa: DTZ001
        ("expires", -1),
        ("timeout", 0),
        ("timeout", -1),
        ("timeout", "x"),
        ("retry", 3),
        ("retry", {"attempts": 3}),
        ("lease", 0),
        ("lease", None),
        ("max_lost", -1),
        ("max_lost", True),
        ("key", 5),
        ("key", ""),
        ("key", Key("")),
        ("key", Key("x", conflict="explode")),
        ("key", Key("x", until="never")),
        ("key", Key("x", window=-1)),
        ("lane", 5),
        ("limits", "smtp"),
        ("limits", 5),
        ("limits", ["queue:mail"]),
        ("limits", [""]),
        ("cost", 0),
        ("cost", 10**9 + 1),
        ("cost", 1.5),
        ("keep", -1),
        ("after", [5]),
        ("after", None),
        ("after", ["not an id"]),
        ("when", "all"),
        ("wait_timeout", "x"),
        ("pass_result", 1),
        ("inline", "yes"),
        ("labels", "one"),
        ("labels", [5]),
        ("labels", 5),
        ("labels", [str(n) for n in range(17)]),
        ("headers", ["a"]),
        ("headers", {"a": 1}),
        ("headers", {1: "a"}),
        ("id", ""),
        ("id", None),
        ("id", "cron:x"),
        ("id", "a b"),
    ],
)
def test_a_wrong_value_is_refused_where_it_is_written(option: str, value: Any) -> None:
    options = {option: value, **({"after": "up"} if option == "when" else {})}
    with pytest.raises(BadOption, match=option):
        new(**options)
    if option not in ("run_at", "after", "id", "when"):
        with pytest.raises(BadOption, match=option):
            make(**options)


def test_an_option_that_does_not_exist_is_named() -> None:
    t: Any = make()
    for wrong in (lambda: t.options(prio=3), lambda: make(prio=3)):
        with pytest.raises(BadOption, match=r"unknown option; did you mean priority=\?; expected one of .*priority"):
            wrong()


@pytest.mark.parametrize("once", [{"id": "x"}, {"after": ["a"]}, {"run_at": datetime.fromtimestamp(NOW, UTC)}])
def test_options_of_one_job_are_no_constants(once: dict[str, Any]) -> None:
    with pytest.raises(BadOption, match="belongs to one job"):
        make(**once)


def test_headers_are_bounded() -> None:
    with pytest.raises(TooLarge, match="headers"):
        new(headers={"a": "x" * 9_000})


def test_a_payload_is_bounded_in_bytes() -> None:
    app = App(storage=MemoryStorage(), sizes=Sizes(payload=100))

    @app.task(name="t")
    async def t(text: str) -> None: ...

    t.job("x" * 90)
    with pytest.raises(TooLarge, match="payload of t"):
        t.job("ü" * 90)


@pytest.mark.parametrize("fields", [{"payload": 0}, {"result": 10**9}, {"headers": -1}, {"payload": 1.5}])
def test_sizes_only_go_down(fields: dict[str, Any]) -> None:
    with pytest.raises(BadOption, match="sizes"):
        Sizes(**fields)


# --- which one wins


@shows("options at enqueue win over computed options, and those over constants")
def test_options_at_enqueue_win_over_computed_ones_and_those_over_constants() -> None:
    t = make(queue="constant", priority=1, lane="l", options=lambda n: {"queue": "computed", "priority": n})
    job = t.options(priority=9).job(5).new
    assert (job.lane, job.queue, job.priority) == ("l", "computed", 9)
    assert t.job(5).new.priority == 5


@shows("`retry` is merged field by field over all levels")
def test_retry_is_merged_field_by_field_at_every_level() -> None:
    t = make(retry=Retry(attempts=9, base=9), options=lambda n: {"retry": Retry(base=2.0, factor=3)})
    job = t.options(retry=Retry(jitter=0)).job(1).new
    assert policy(job).retry == Retry(base=2.0, factor=3, jitter=0)
    assert t._core.retry == Retry(attempts=9, base=9.0)


@pytest.mark.parametrize("constants", [{}, {"key": "k"}])
def test_policy_of_the_task_stays_in_the_code(constants: dict[str, Any]) -> None:
    t = make(retry=Retry(attempts=9), timeout=4, max_lost=2, **constants)
    assert t.job(1).new.retry is None
    job = t.options(timeout=None, priority=1).job(1).new
    assert policy(job) == Policy(timeout=None)


@shows("`run_at` wins over `delay`, and `deadline` over `expires`")
def test_run_at_wins_over_delay_and_deadline_over_expires_on_one_level() -> None:
    moment = datetime.fromtimestamp(NOW + 50, UTC)
    assert new(delay=5, run_at=moment).delay == 50
    assert new(expires=5, deadline=moment).deadline == 50


def test_a_later_delay_wins_over_an_earlier_time() -> None:
    moment = datetime.fromtimestamp(NOW + 50, UTC)
    t = make(options=lambda n: {"run_at": moment, "deadline": moment})
    job = t.options(delay=5, expires=6).job(1).new
    assert (job.delay, job.deadline) == (5, 6)
    assert new({"deadline": moment}, expires=7).deadline == 7
    assert new({"delay": 3}, run_at=moment).delay == 50


def test_cost_and_limits_of_different_levels_are_combined() -> None:
    assert new({"limits": ["a"]}, cost=3).limits == (("a", 3),)
    assert new({"limits": ["a"], "cost": 3}, limits=["b"]).limits == (("b", 3),)
    assert new({"limits": ["a"], "cost": 3}).limits == (("a", 3),)


def test_when_as_a_constant_holds_for_the_after_of_a_job() -> None:
    job = new({"when": all_done()}, after=["a", "b"])
    assert (job.required, job.failures_allowed) == (2, None)


@pytest.mark.parametrize(
    ("when", "threshold"),
    [
        (all_succeeded(), (3, 0)),
        (all_done(), (3, None)),
        (at_least(1), (1, 2)),
        (at_least(2, of="done"), (2, None)),
    ],
)
def test_when_sets_the_thresholds(when: Any, threshold: tuple[int, int | None]) -> None:
    job = new(after=["a", "b", "c"], when=when)
    assert (job.required, job.failures_allowed) == threshold


def test_a_threshold_that_can_never_be_met_is_refused() -> None:
    with pytest.raises(BadOption, match=r"at_least\(3\) of 2"):
        new(after=["a", "b"], when=at_least(3))
    for wrong in (0, -1, 1.5, True, "2"):
        with pytest.raises(BadOption, match="at_least"):
            at_least(wrong)  # type: ignore[arg-type]


def test_a_job_cannot_wait_for_itself() -> None:
    with pytest.raises(BadOption, match="itself"):
        new(id="me", after=["me"], wait_timeout=5)


def test_inline_is_kept_from_every_level() -> None:
    assert make(inline=True).job(1).inline
    assert make(inline=True).options(priority=1).job(1).inline
    assert not make(inline=True).options(inline=False).job(1).inline
    assert make().options(inline=True).job(1).inline
    assert make(options=lambda n: {"inline": True}).job(1).inline


def test_pass_result_of_each_level_is_stored_in_the_row() -> None:
    rows = [
        make(pass_result=True).job(),
        make(pass_result=True).options(priority=1).job(),
        make(pass_result=True, key="k").job(),
        make().options(pass_result=True).job(),
        make(options=lambda: {"pass_result": True}).job(),
    ]
    assert [(spec.new.payload, policy(spec.new).pass_result) for spec in rows] == [("[]", True)] * 5
    whole = make(pass_result=True).options(pass_result=False).job(1).new
    assert (whole.payload, policy(whole).pass_result) == ("[1]", False)


def test_invalid_computed_options_are_refused() -> None:
    computed: Any = lambda n: None  # noqa: E731
    with pytest.raises(BadOption, match="mapping"):
        make(options=computed).job(1)
    with pytest.raises(BadOption, match="'nope'"):
        make(options=lambda n: {"nope": 1}).job(1)  # type: ignore[typeddict-item]


async def _mail(to: str, body: str = "", *, copy: bool = False) -> None: ...


@pytest.mark.parametrize(
    "options",
    [
        lambda to: {},
        lambda to, body: {},
        lambda to, **rest: {},
        lambda *args, **named: {},
        lambda to, copy: {},
        lambda address, text="", *, copy=False: {},
        lambda body, copy=False: {},  # in a chain the first argument is passed later
        dict,
        max,  # its signature cannot be read
    ],
)
def test_an_options_function_that_fits_some_call(options: Any) -> None:
    App("memory://").task(options=options)(_mail)


@pytest.mark.parametrize(
    "options",
    [
        lambda to, body, copy, more: {},
        lambda *, address: {},
        lambda to, *, address: {},
    ],
)
def test_an_options_function_that_fits_no_call_is_refused_at_the_declaration(options: Any) -> None:
    expected = (
        r"expected a function that takes the arguments of a job, \(to: 'str', body: 'str' = ''.*found one with \("
    )
    with pytest.raises(BadOption, match=expected):
        App("memory://").task(options=options)(_mail)


def test_an_options_function_of_a_task_with_more_required_parameters() -> None:
    async def move(file: str, size: int, to: str) -> None: ...

    with pytest.raises(BadOption, match="or \\*\\*rest for those that it does not use"):
        App("memory://").task(options=lambda file: {})(move)


def test_an_options_function_of_a_batch_takes_one_item() -> None:
    async def store(items: list[int]) -> list[int]:
        return items

    App("memory://").batch(options=lambda item: {"lane": str(item)})(store)
    with pytest.raises(BadOption, match="found one with"):
        App("memory://").batch(options=lambda item, size: {})(store)


def test_a_wrong_argument_is_named_before_options_are_computed() -> None:
    with pytest.raises(TypeError, match="'n'"):
        make(options=lambda n: {"priority": n + 1}).job("five")  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError):
        make(options=lambda n: {"priority": n // 0}).job(5)


@pytest.mark.parametrize(
    "rule",
    [
        Limit("", slots=1),
        Limit("x", slots=-1),
        Limit("x", slots=True),
        Limit("x", rate=0),
        Limit("x", rate=1, per=0),
        Limit("x", rate=1, per=1e9),
        Limit("x", rate=1, how="sliding"),
        Limit("x", slots=1, hold="ever"),
        Limit("x", rate=1, burst=5),
        Limit("x", slots=1.5),
        Limit("x", rate=1, per="60"),
        "smtp",
    ],
)
def test_an_invalid_limit_is_refused(rule: Any) -> None:
    with pytest.raises(BadOption, match="limit"):
        check(rule)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("max_retries", r"Retry\(attempts=\.\.\.\), which also counts the first attempt"),
        ("countdown", "delay="),
        ("bind", r"current\(\)"),
        ("queu", "queue="),
    ],
)
def test_an_option_of_another_job_queue_is_translated(name: str, said: str) -> None:
    with pytest.raises(BadOption, match=f"did you mean .*{said}"):
        check_names({name: 1})
