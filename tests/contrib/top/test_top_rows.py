"""The pure parts of `treadle top`: columns in a width, bars, rows, figures, and the pace of looks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from tests.contrib.top.screen import Place
from treadle import App
from treadle.admin.failure_groups import FailureGroup, FailureGroups
from treadle.contrib.top import plain, rows, summary
from treadle.contrib.top.grid import GAP, Column, Row, cell, fit, gauge, padded, spark
from treadle.contrib.top.reader import LONGEST, Outage, Reader, Snapshot
from treadle.core.limit_model import Limit, LimitUse, Pause
from treadle.core.model import Presence, State
from treadle.core.placement import Needs
from treadle.core.query_model import Count, Glance, QueueGlance
from treadle.server.overview import Look, Overview, compose
from treadle.storage.memory import MemoryStorage

NOW = 1_700_000_000.0
TEXTS = st.text(max_size=40)


def overview(**fields: object) -> Overview:
    return compose(Look(glance=Glance(at=NOW, **fields)))  # type: ignore[arg-type]


def texts(row: Row) -> list[str]:
    return [each.text for each in row.cells]


# --- columns


@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS), min_size=1, max_size=5), st.integers(20, 120))
def test_lines_are_as_wide_as_the_screen_at_most(cells: list[tuple[str, str, str]], width: int) -> None:
    columns = (Column(name="first", stretch=True), Column(name="second", rank=2), Column(name="third", rank=1))
    found = [Row(str(at), tuple(map(cell, each))) for at, each in enumerate(cells)]
    kept = fit(columns, found, width)
    assert kept[0][0] == 0
    for row in found:
        line = (" " * GAP).join(padded(row.cells[at].text, wide) for at, wide in kept)
        assert cell_len(line) == sum(wide for _, wide in kept) + GAP * (len(kept) - 1) <= width


def test_columns_of_a_high_rank_go_first() -> None:
    columns = (Column(name="queue", stretch=True, least=6), Column(name="b", rank=1), Column(name="c", rank=2))
    found = [Row("x", (cell("a long name of a queue"), cell("12345"), cell("12345")))]
    assert [at for at, _ in fit(columns, found, 40)] == [0, 1, 2]
    assert fit(columns, found, 20) == [(0, 6), (1, 5), (2, 5)]
    assert [at for at, _ in fit(columns, found, 19)] == [0, 1]
    assert [at for at, _ in fit(columns, found, 12)] == [0]


@settings(max_examples=50)
@given(st.text(max_size=30), st.integers(0, 20), st.booleans())
def test_a_text_has_exactly_its_width(text: str, width: int, right: bool) -> None:
    assert cell_len(padded(cell(text).text, width, right)) == width


def test_a_text_that_does_not_fit_ends_with_an_ellipsis() -> None:
    assert padded("a long text", 6) == "a lon…"
    assert padded("日本語の名前", 5) == "日本…"
    assert padded("7", 3, right=True) == "  7"


# --- bars


@given(st.lists(st.floats(0, 1e9), max_size=90), st.integers(0, 40))
def test_bars_fit_and_show_each_value_above_zero(values: list[float], width: int) -> None:
    line = spark(values, width)
    assert len(line) <= width
    if values and width and len(values) <= width:
        assert [bar == "▁" for bar in line] == [value == 0 for value in values]


def test_neighbours_share_a_bar() -> None:
    assert spark([0, 0, 1, 1, 2, 2], 3) == "▁▅█"
    assert spark([9, 0, 0, 1, 2], 2) == "█▄"
    assert gauge(0, 8) == "░" * 8
    assert gauge(1, 1_000) == "█" + "░" * 7
    assert gauge(9, 8) == "█" * 8
    assert gauge(1, 0) == ""


# --- rows


def test_a_queue_shows_why_its_jobs_wait() -> None:
    found = overview(
        queues=(
            QueueGlance(name="mail", queued=3, oldest=75.0),
            QueueGlance(name="video", queued=10_000, queued_capped=True, failed=7),
            QueueGlance(name="ftp", queued=1),
        ),
        workers=(Presence(worker="a", queues=("video",), slots=4, running=1),),
        limits=(
            LimitUse(key="queue:mail", rule=Limit("queue:mail", slots=0), pauses=(Pause("queue:mail"),)),
            LimitUse(key="queue:ftp", rule=Limit("queue:ftp", slots=0), pauses=(Pause("queue:ftp", "held", NOW + 9),)),
        ),
        capped=("failed",),
    )
    shown = {
        row.key: dict(zip([each.name for each in rows.QUEUES], texts(row), strict=True)) for row in rows.queues(found)
    }
    assert [shown[name]["state"] for name in ("mail", "video", "ftp")] == ["‖ paused", "open", "rests"]
    assert (shown["mail"]["queued"], shown["mail"]["oldest"]) == ("3", "75 s")
    assert (shown["video"]["queued"], shown["video"]["failed"]) == ("10,000+", "7+")
    alone = overview(queues=(QueueGlance(name="mail", queued=3),))
    assert "! no worker" in texts(rows.queues(alone)[0])


def test_a_full_queue_and_jobs_that_no_worker_can_run_are_marked(capsys: pytest.CaptureFixture[str]) -> None:
    needs = Needs("train", (("gpu", ()),))
    look = Look(
        glance=Glance(
            at=NOW,
            queues=(
                QueueGlance(name="full", queued=10_000, queued_capped=True),
                QueueGlance(name="room", queued=2, scheduled=1),
                QueueGlance(name="shut", queued=9),
            ),
            workers=(Presence(worker="a", queues=("room", "shut"), slots=4, needs=(needs,)),),
            limits=(
                LimitUse(key="queue", rule=Limit("queue", max_waiting=10_500)),
                LimitUse(key="queue:shut", rule=Limit("queue:shut", slots=3, max_waiting=9)),
            ),
        ),
        exact={"full": 10_500},
        counts=(Count(queue="room", task="train", state=State.READY, jobs=3, queued=3),),
    )
    found = compose(look)
    shown = [dict(zip([each.name for each in rows.QUEUES], texts(row), strict=True)) for row in rows.queues(found)]
    assert [(each["state"], each["bound"]) for each in shown] == [
        ("! full, no worker", "10,500/10,500"),
        ("! 3 unplaced", "3/10,500"),
        ("! full", "9/9"),
    ]
    assert [texts(row)[-1] for row in rows.limits(found)] == ["full: full", "full"]
    plain.show(found)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-3:] for line in lines[1:4]] == [
        ["10,500,", "refuse", "full"],
        ["open,", "3", "unplaced"],
        ["9,", "refuse", "full"],
    ]


def test_the_rule_behind_a_pause_is_shown() -> None:
    rule = Limit("api", slots=3, rate=5, per=60)
    use = LimitUse(key="api", rule=Limit("api", slots=0), pauses=(Pause("api"),), behind=rule, used=1, starts=2)
    assert texts(rows.limits(overview(limits=(use,)))[0])[1:5:3] == ["1/3", "2/5 in 60 s"]


def test_a_worker_shows_its_labels_and_resources() -> None:
    worker = Presence(worker="a", labels=(("gpu", "a100"), ("spot", "")), resources=(("memory_mb", 2_048, 512),))
    assert texts(rows.workers(overview(workers=(worker,)))[0])[6] == "gpu=a100 spot memory_mb 512/2,048"


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (LimitUse(key="x", rule=Limit("x", slots=2), used=2, blocked=5), "all slots in use"),
        (LimitUse(key="x", rule=Limit("x", slots=2), used=1), "has room"),
        (LimitUse(key="x", rule=Limit("x", slots=0)), "0 slots"),
        (LimitUse(key="x", rule=Limit("x", rate=5, per=60), next_start=NOW + 30), "rate used up, next start in 30 s"),
        (LimitUse(key="x", rule=Limit("x", slots=0), pauses=(Pause("x"),)), "‖ paused by an operator"),
        (
            LimitUse(key="x", rule=Limit("x", slots=0), pauses=(Pause("x", "held", NOW + 20),)),
            "rests, as a job asked, ends in 20 s",
        ),
    ],
)
def test_a_limit_shows_why_it_starts_no_job(use: LimitUse, words: str) -> None:
    assert texts(rows.limits(overview(limits=(use,)))[0])[-1] == words


def test_limits_that_block_come_first() -> None:
    uses = tuple(
        LimitUse(key=key, rule=Limit(key, slots=1), blocked=jobs) for key, jobs in (("a", 0), ("b", 2), ("c", 9))
    )
    assert [row.key for row in rows.limits(overview(limits=uses))] == ["c", "b", "a"]


def test_a_worker_shows_whether_it_sends_heartbeats() -> None:
    found = overview(
        workers=(
            Presence(worker="a", slots=2, running=2),
            Presence(worker="b", slots=2, age=40.0, ttl=90.0),
            Presence(worker="c", slots=2, age=1.0, paused=11.0),
            Presence(worker="d", slots=2),
        )
    )
    assert [texts(row)[3] for row in rows.workers(found)] == ["full", "! silent for 40 s", "throttled, 10 s", "ready"]


def test_a_group_of_failures_shows_its_signature() -> None:
    group = FailureGroup(
        key="k", task="send", queue="mail", signature="E: \x1b[2J\n<n>", jobs=3, first=NOW - 90, last=NOW - 60,
        sample="j", error="E", spark=[0] * 23 + [3],
    )  # fmt: skip
    [row] = rows.failures(FailureGroups(groups=[group]), NOW)
    assert texts(row)[:4] == ["3", "send", "mail", "60 s ago"]
    assert "\x1b" not in texts(row)[-1]
    assert "\n" not in texts(row)[-1]
    assert row.matches("SEND")
    assert not row.matches("other")


# --- figures


def test_figures_show_which_counts_are_bounds() -> None:
    found = overview(queues=(QueueGlance(name="a", queued=10_000, queued_capped=True, blocked=2),), capped=("blocked",))
    figures = {each.label: (each.value, each.detail) for each in summary.tiles(Snapshot(overview=found))}
    assert figures["queued"] == ("10,000+", "none waits")
    assert figures["blocked"] == ("2+", "0 scheduled")
    assert figures["running"] == ("0", "no worker")
    assert figures["ended/s"] == ("-", "no metrics yet")
    assert summary.strip(Snapshot(overview=found)).startswith("10,000+ queued · 0 running · 0 failed")


def test_the_link_shows_the_age_of_the_figures() -> None:
    assert summary.link(None, None, 2.0, NOW)[0] == "◌ connecting"
    assert summary.link(None, 1.0, 2.0, NOW)[0] == "● live, every 2.0 s"
    assert summary.link(None, 30.0, 2.0, NOW)[0] == "◌ figures are 30 s old"
    assert summary.link(None, 30.0, 20.0, NOW)[0] == "● live, every 20 s"
    outage = Outage(NOW - 150, "refused\x1b")
    assert summary.link(outage, 150.0, 2.0, NOW)[0] == "✕ no storage for 2 m"
    assert "2023-11-14 22:10:50 UTC (2 m): refused\\x1b." in summary.alert(outage, False, NOW)


def test_notices_beyond_the_room_are_counted() -> None:
    found = overview(queues=tuple(QueueGlance(name=f"q{at}", queued=1) for at in range(5)))
    shown = summary.notices(Snapshot(overview=found), 3)
    assert len(shown) == 3
    assert shown[-1][0] == "  and 3 more notices"
    assert summary.notices(Snapshot(overview=found), 0) == []


# --- looks


async def test_a_slow_storage_is_looked_at_less_often() -> None:
    """50 times as long as the look took, so that a look takes at most 2 % of the time."""
    now, cost = [0.0], [0.0]

    async def wait() -> None:
        now[0] += cost[0]

    async with App(storage=Place(MemoryStorage())) as app:
        reader = Reader(app, 2.0, lambda: now[0])
        assert reader.pause == 2.0
        for cost[0], pause in ((0.01, 2.0), (0.2, 10.0), (30.0, LONGEST)):
            await reader.look(wait)
            assert reader.pause == pytest.approx(pause)
        slow = Reader(app, 100.0, lambda: now[0])
        await slow.look(wait)
        assert slow.pause == 100.0


async def test_an_outage_keeps_its_beginning_and_the_last_figures() -> None:
    place = Place(MemoryStorage())
    async with App(storage=place) as app:
        reader = Reader(app)
        await reader.look()
        figures, place.away = reader.snapshot, True
        await reader.look()
        began = reader.outage
        assert began is not None
        assert began.reason == "the server refused the connection"
        await reader.look()
        assert reader.outage is not None
        assert reader.outage.began == began.began
        assert reader.snapshot is figures
        place.away = False
        await reader.look()
        assert reader.outage is None


async def test_failures_are_grouped_again_only_when_their_number_has_changed() -> None:
    now, place = [0.0], Place(MemoryStorage())
    async with App(storage=place) as app:
        reader = Reader(app, clock=lambda: now[0])
        await reader.look()
        place.calls.clear()
        await reader.look()
        assert sorted(place.calls) == ["get", "glance", "read_metrics"]
        now[0] += 31.0
        place.calls.clear()
        await reader.look()
        assert place.calls.count("read_metrics") == 3  # the last minutes, the last hour, the mark of the storage
        assert "stats" not in place.calls
