"""Each rule of the checker accepts a history that keeps it, and finds one that breaks it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from treadle import App, Worker
from treadle.core.limit_model import Limit, LimitUse
from treadle.core.model import NewJob, Record, State
from treadle.core.query_model import CountDrift
from treadle.testing.history import Entry, History, Recorder, check, read
from treadle.workflow.signals import HEADER

START = 1_000.0
LEASE = 10.0


def at(moment: float, what: Any, id: str = "a", actor: str = "w", **rest: Any) -> Entry:
    return Entry(at=START + moment, actor=actor, what=what, id=id, **rest)


def lived(id: str = "a", begin: float = 1.0, end: float = 2.0, actor: str = "w", version: int = 1) -> list[Entry]:
    """A job that was enqueued, run and settled."""
    return [
        at(0, "asked", id, "p"),
        at(0.1, "stored", id, "p"),
        at(begin, "claimed", id, actor, version=version),
        at(begin, "began", id, actor, version=version),
        at(end, "ended", id, actor, version=version, how="returned", text="1"),
        at(end, "settled", id, actor, version=version, how="succeeded"),
    ]


def row(id: str = "a", begin: float = 1.0, end: float = 2.0, **job: Any) -> Record:
    return Record(
        job=NewJob(id=id, task="t", **job),
        version=2,
        state=State.SUCCEEDED,
        after=job.get("after", ()),
        result="1",
        created_at=START,
        started_at=START + begin,
        ended_at=START + end,
    )


def signal(turn: str) -> Record:
    """A signal `s` that was sent to the job `a`."""
    header = '{"job":"a","signal":"s"}'
    return Record(
        job=NewJob(id=f"treadle:signal:{turn}", task="", headers=((HEADER, header),), root="a", parent="a"),
        version=1,
        state=State.SUCCEEDED,
        after=(),
        result="1",
        created_at=START,
    )


def rules(entries: Sequence[Entry], rows: Sequence[Record], *limits: LimitUse, **rest: Any) -> list[str]:
    return [found.rule for found in check(entries, rows, limits, lease=LEASE, **rest)]


def test_a_correct_job_breaks_no_rule() -> None:
    assert rules(lived(), [row()]) == []


def in_lane(id: str, lane: str) -> Record:
    return row(id, lane=lane)


def priced(id: str, cost: int, begin: float, end: float) -> Record:
    return row(id, begin, end, limits=(("db", cost),))


# The second job of a busy lane is claimed before the first one of another lane.
BUSY = [
    *lived("a", 3, 4),
    *(at(0.2, "asked", "b"), at(0.3, "stored", "b"), *lived("b", 4, 5)[2:]),
    *(at(0.4, "asked", "c"), at(0.5, "stored", "c"), *lived("c", 5, 6)[2:]),
]
ASKED_LATER = at(1, "asked", "b"), at(1.5, "stored", "b")


@pytest.mark.parametrize(
    ("rule", "entries", "rows"),
    [
        ("acknowledged", lived(), []),
        ("acknowledged", [at(0, "asked", actor="p", facts={"task": "another"}), *lived()], [row()]),
        ("unfinished", lived(), [replace(row(), state=State.RUNNING, result=None)]),
        ("unknown", [], [row()]),
        ("unknown", [at(0, "asked"), at(1, "refused")], [replace(row(), result=None)]),
        ("value", lived(), [replace(row(), result="2")]),
        ("value", [*lived(), at(3, "settled", version=3, how="succeeded")], [row()]),
        ("fence", [*lived(), at(3, "began", actor="v", version=1)], [row()]),
        ("overlap", [*lived(end=5), *lived(begin=3, end=4, actor="v", version=2)[3:5]], [replace(row(), version=3)]),
        ("step", [*lived(), at(1.2, "kept", name="s", text="1"), at(1.3, "step", name="s")], [row()]),
        ("step", [*lived(), *(at(1, "kept", name="s", text=text) for text in "12")], [row()]),
        ("signal", [*lived(), at(1, "received", name="s", text="1")], [row()]),
        ("signal", [*lived(), at(1, "signalled", name="s", text="1")], [row()]),
        ("signal", lived(), [row(), *(signal(f"{turn}") for turn in (1, 2))]),
        ("key", [*lived("a"), *lived("b")], [row("a", key="k"), row("b", key="k")]),
        ("order", [*lived("a", 3, 4), *ASKED_LATER, *lived("b", 2, 3)[2:]], [row("a", 3, 4), row("b", 2, 3)]),
        (
            "order",
            [*lived("a", 3, 4), *ASKED_LATER, *lived("b", 2, 3)[2:]],
            [priced("a", 3, 3, 4), priced("b", 1, 2, 3)],
        ),
        ("asked", [at(0, "asked", actor="p", facts={"task": "t", "priority": 2}), *lived()], [row()]),
        ("delay", lived(begin=1), [row(delay=3.0)]),
        ("order", [*lived("a", 3, 4), *ASKED_LATER, *lived("b", 2, 3)[2:]], [in_lane("a", "l"), in_lane("b", "l")]),
        ("priority", [*lived("a", 3, 4), *lived("b", 2, 3)], [row("a", 3, 4, priority=1), row("b", 2, 3)]),
        ("lane", BUSY, [in_lane("a", "l"), in_lane("b", "l"), in_lane("c", "m")]),
        ("tick", [], [row("cron:s:20260101T000000Z:again")]),
        ("tick", [], [replace(row("cron:s:20260101T000000Z"), started_at=START)]),
        ("after", [*lived("a", 1, 4), *lived("b", 2, 3)], [row("a", 1, 4), row("b", 2, 3, after=("a",))]),
    ],
)
def test_a_broken_promise_is_found_by_its_rule(rule: str, entries: list[Entry], rows: list[Record]) -> None:
    assert rules(entries, rows) == [rule]


def test_the_effect_of_a_fault_is_no_violation() -> None:
    lost = [at(0, "asked"), at(0.1, "stored"), at(1, "began", version=1), at(2, "crashed", "")]
    again = [at(12, "began", actor="v", version=2), at(13, "ended", actor="v", version=2, how="returned", text="1")]
    assert rules([*lost, *again], [replace(row(), version=3)]) == []
    assert rules([at(0, "asked", "b")], []) == []  # no answer, and nothing is stored
    assert rules([at(0, "asked")], [replace(row(), result=None)]) == []  # no answer, and it is stored


def test_a_signal_that_was_sent_is_received_or_stored() -> None:
    given = [*lived(), at(1, "signalled", name="s", text="1")]
    assert rules(given, [row(), signal("1")]) == []
    assert (
        rules([*given, at(0.9, "signal", name="s", text="1"), at(1.5, "received", name="s", text="1")], [row()]) == []
    )
    waits = replace(row(), state=State.WAITING, result=None, after=("treadle:signal:1",))
    assert rules(given, [waits, signal("1")], waiting={"a"}) == ["signal"]


def test_more_runs_or_starts_than_a_limit_admits_are_violations() -> None:
    entries = [*lived("a", 1, 5), *lived("b", 2, 6)]
    rows = [row(id, limits=(("l:x", 1),)) for id in "ab"]
    assert rules(entries, rows, LimitUse(key="l", rule=Limit("l", slots=2))) == []
    assert rules(entries, rows, LimitUse(key="l", rule=Limit("l", slots=1))) == ["slots"]
    assert rules(entries, rows, LimitUse(key="l", rule=Limit("l", rate=1, per=1.0))) == []
    assert rules(entries, rows, LimitUse(key="l", rule=Limit("l", rate=1, per=2.0))) == ["rate"]
    assert rules(entries, rows, LimitUse(key="l:x", rule=Limit("l", slots=2), used=1)) == ["left"]


def test_the_clock_was_set() -> None:
    """Then no claim can be judged by its time."""
    entries = [*lived("a", 3, 4), *lived("b", 2, 3), at(1, "clock", "", seconds=5)]
    assert rules(entries, [row("a", 3, 4, priority=1), row("b", 2, 3, delay=9.0)]) == []


@pytest.mark.parametrize(("gap", "broken"), [(2e-7, False), (2e-6, True)])
def test_of_jobs_that_have_the_same_place_in_their_queue_any_may_be_claimed_first(gap: float, broken: bool) -> None:
    stored = [at(0, "asked", "a"), at(1 - gap, "stored", "a"), *lived("a", 3, 4)[2:]]
    found = rules([*stored, *ASKED_LATER, *lived("b", 2, 3)[2:]], [row("a", 3, 4), row("b", 2, 3)])
    assert found == (["order"] if broken else [])


def test_the_order_of_a_queue_compares_only_what_nothing_holds_back() -> None:
    entries = [*lived("a", 3, 4), *lived("b", 2, 3)]
    for held in ({"delay": 1.0}, {"limits": (("l", 1),)}, {"key": "k"}, {"queue": "other"}):
        assert rules(entries, [row("a", 3, 4, priority=1, **held), row("b", 2, 3)]) == [], held
    lanes = [in_lane("a", "l"), in_lane("b", "l"), in_lane("c", "m")]
    first = [*BUSY[:-4], at(3.5, "claimed", "c", "w", version=1), *lived("c", 3.5, 6)[3:]]
    assert rules(first, lanes) == []  # the first one of its lane is second in the queue


def during(entries: Sequence[Entry], since: float, until: float, *, answered: bool = True) -> list[Entry]:
    """The same, where each claim was called so long before its moment and answered so long after it."""
    found = []
    for entry in entries:
        found.append(replace(entry, name=entry.id) if entry.what == "claimed" else entry)
        if entry.what == "claimed":
            found.append(Entry(at=entry.at - since, actor="w", what="claiming", name=entry.id))
            found += [Entry(at=entry.at + until, actor="w", what="answered", name=entry.id)] * answered
    return found


@pytest.mark.parametrize(
    ("rule", "entries", "rows"),
    [
        ("order", [*lived("a", 3, 4), *ASKED_LATER, *lived("b", 2, 3)[2:]], [row("a", 3, 4), row("b", 2, 3)]),
        ("priority", [*lived("a", 3, 4), *lived("b", 2, 3)], [row("a", 3, 4, priority=1), row("b", 2, 3)]),
        ("lane", BUSY, [in_lane("a", "l"), in_lane("b", "l"), in_lane("c", "m")]),
    ],
)
def test_a_claim_passes_over_a_job_only_while_another_claim_may_have_locked_it(
    rule: str, entries: list[Entry], rows: list[Record]
) -> None:
    near = during(entries, 0.2, 0.2)
    assert rules(near, rows) == [rule]
    assert rules(during(entries, 0.6, 0.6), rows) == []
    assert rules(during(entries, 0.2, 0.2, answered=False), rows) == []
    silent = Entry(at=START + 1, actor="v", what="claiming", name="x")
    assert rules([silent, *near], rows) == []
    again = Entry(at=START + 1.1, actor="v", what="claiming", name="x")  # repeated, and then answered
    answer = Entry(at=START + 1.2, actor="v", what="answered", name="x")
    assert rules([silent, again, answer, *near], rows) == []
    assert rules([answer, answer, *near], rows) == [rule]  # the beginning of this history is missing
    others = [Entry(at=START + at, actor="v", what=what, name="y") for at, what in ((1, "claiming"), (4, "answered"))]
    assert rules([*others, *near], rows) == []
    assert rules([others[0], replace(others[1], at=START + 1.01), *near], rows) == [rule]
    early = replace(silent, at=START - 2 * LEASE)
    assert rules([early, *near], rows) == [rule]


def test_ticks_of_a_schedule() -> None:
    rows = [row(f"cron:s:19700101T00163{second}Z") for second in (0, 2, 4)]
    assert rules([], rows, ticks={"s": 2.0}) == []
    assert rules([], [rows[0], rows[2]], ticks={"s": 2.0}) == ["tick"]
    assert rules([], [rows[0], rows[2]]) == []  # it may leave out ticks


def test_a_bounded_queue() -> None:
    before = [*lived("x", 0.5, 0.6)]
    crowd = [*before, *(each for id in "abc" for each in (at(1, "asked", id), at(1.1, "stored", id)))]
    crowd += [each for number, id in enumerate("abc") for each in lived(id, 2 + number, 3 + number)[2:]]
    rows = [row("x", queue="other"), *(row(id, queue="q") for id in "abc")]
    for most, broken in ((3, []), (2, ["bound"])):
        assert rules(crowd, rows, LimitUse(key="queue:q", rule=Limit("queue:q", max_waiting=most))) == broken
    early = [replace(each, at=each.at - 1) if each.what in ("asked", "stored") else each for each in crowd]
    assert rules(early, rows, LimitUse(key="queue:q", rule=Limit("queue:q", max_waiting=2))) == []
    shed = replace(row(queue="q"), state=State.CANCELLED, reason="shed", result=None)
    for how, broken in (("refuse", ["shed"]), ("drop_oldest", ["shed"])):
        rule: Any = Limit("queue:q", max_waiting=2, when_full=how)
        assert rules(lived(), [shed], LimitUse(key="queue:q", rule=rule)) == broken
    unclaimed = [each for each in lived() if each.what in ("asked", "stored")]
    assert rules(unclaimed, [shed], LimitUse(key="queue:q", rule=rule)) == []


def test_wrong_kept_counts_are_a_violation() -> None:
    drift = CountDrift(queue="q", task="t", kind="queued", kept=1, counted=0)
    assert rules(lived(), [row()], drifts=[drift]) == ["counts"]


def test_a_job_on_a_worker_without_its_labels_or_room_is_a_violation() -> None:
    place = at(0, "worker", "", facts={"labels": {"zone": "a"}, "resources": {"memory": 3}})

    def two(**facts: Any) -> list[Entry]:
        entries = [place, *lived("a", 1, 3), *lived("b", 2, 4)]
        return [replace(each, facts=facts) if each.what == "began" else each for each in entries]

    rows = [row("a", 1, 3), row("b", 2, 4)]
    assert rules(two(uses={"memory": 1}, requires=[["zone", ["a", "b"]]]), rows) == []
    assert rules(two(uses={"memory": 2}), rows) == ["resources"]
    assert rules(two(requires=[["zone", ["b"]]]), rows) == ["labels", "labels"]
    assert rules([each for each in two(uses={"memory": 2}) if each.what != "worker"], rows) == []


def test_values_are_compared_with_those_expected() -> None:
    assert rules(lived(), [row()], expected={"a": "1"}) == []
    assert rules(lived(), [row()], expected={"a": "2"}) == ["expected"]
    assert rules(lived(), [replace(row(), state=State.READY, result=None)], waiting={"a"}) == []


def test_the_story_of_a_job_has_its_entries_in_order_and_its_row() -> None:
    [found] = check([*lived(), at(1.5, "stalled", "", seconds=3)], [replace(row(), result="2")], lease=LEASE)
    text = str(found)
    assert [line.split()[2] for line in text.splitlines()[1:-1]] == [
        "asked",
        "stored",
        "claimed",
        "began",
        "stalled",
        "ended",
        "settled",
    ]
    assert text.splitlines()[-1].strip().startswith("a: succeeded v2")


async def test_a_program_records_what_it_does(tmp_path: Path) -> None:
    app, path = App("memory://"), tmp_path / "history.jsonl"
    history = History("here", path=path)
    Recorder(history).attach(app)

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    @app.task
    async def parent() -> Any:
        return double.job(2)

    async with app, Worker(app):
        job = await parent.enqueue()
        await job.workflow.result(10)
        rows = [row async for row in app.jobs.iterate()]
    history.close()
    with path.open("ab") as file:
        file.write(b'{"at": 1, "act')  # a line that a kill has cut short
    entries = read(path)
    assert check(entries, rows, lease=30.0) == []
    assert [entry.what for entry in entries if entry.id == job.id][:4] == ["asked", "stored", "began", "ended"]
    child = next(row for row in rows if row.job.parent == job.id)
    assert [entry.what for entry in entries if entry.id == child.id] == ["asked", "began", "ended", "settled"]
    wrong = [replace(each, result="5") if each.result == "4" else each for each in rows]
    assert {found.rule for found in check(entries, wrong, lease=30.0)} == {"value"}
