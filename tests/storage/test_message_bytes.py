"""Messages between processes of several versions keep their bytes: entries of the log of ports, and HTTP messages.

`message_bytes.txt` has one message in each line: its name, a tab, its JSON. A line changes only on purpose: older
processes read what newer ones write, and newer ones read what is stored. A new field has a default, which is the old
meaning.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from msgspec import inspect as info

from treadle.core.limit_model import Declare, Limit, LimitFacts, LimitUse, Pause, Resume
from treadle.core.model import Claim, Claimed, LeaseRenewal, NewJob, Outcome, Presence, Record, Settled, State
from treadle.core.placement import Needs
from treadle.core.query_model import Glance, MetricsRow, Page, Query, QueueGlance
from treadle.storage import messages
from treadle.storage.composed import log_entries
from treadle.storage.transfer import Carried, Chunk, Edge, MoveState, Rate

BYTES: Final = dict(line.split("\t") for line in (Path(__file__).parent / "message_bytes.txt").read_text().splitlines())

JOB = NewJob(
    id="j1",
    task="mail.send",
    payload='["ä",1]',
    queue="mail",
    priority=-3,
    delay=1.5,
    key="mail.send k",
    key_conflict="replace",
    key_window=60.0,
    key_until="started",
    after=("a", "b"),
    required=1,
    failures_allowed=None,
    wait_timeout=9.0,
    limits=(("api:eu", 2),),
    lane="tenant",
    stride=0.5,
    aging=10.0,
    keep=61.0,
    keep_failed=62.0,
    deadline=100.0,
    retry='{"attempts":2}',
    lease=7.0,
    labels=("x", "y=z"),
    headers=(("h", "v"),),
    root="r",
    parent="p",
    function_done=True,
    reach=("mail",),
    run_at=1_700_000_000.5,
    deadline_at=1_700_000_100.25,
    nonce="n1",
)
PLAIN = NewJob(id="j2", task="t")
RECORD = Record(
    job=JOB,
    version=4,
    state=State.RUNNING,
    after=("a", "c"),
    pending=1,
    failures_allowed=2,
    function_done=True,
    queue_position=5.5,
    return_position=4.5,
    due_at=1000.25,
    deadline_at=1100.0,
    attempt=2,
    lost=1,
    worker="w#1",
    blocked_on="api:eu",
    result="[1]",
    value="2",
    error="E",
    reason="lost by w",
    checkpoints=(("step", "1"),),
    note="0.5",
    reopenings=1,
    created_at=900.0,
    started_at=950.0,
    updated_at=960.0,
    ended_at=970.0,
    expires_at=980.0,
)
CLAIM = Claim(
    worker="w#2",
    queues=(("mail", 2), ("default", 1)),
    tasks={"mail.send": (3, 4.0), "t": (None, None)},
    limit=5,
    lease=20.0,
    ids=("j1",),
    running=("j2",),
    hand_off=("unix:/x", 2.5),
    reach=("mail",),
)
OUTCOME = Outcome(
    id="j1",
    version=4,
    state=State.WAITING,
    delay=2.0,
    attempt=3,
    result="[1]",
    value="2",
    error="E",
    reason="error",
    checkpoints=(("step", "1"),),
    note="0.5",
    followups=(PLAIN,),
    after=("j2",),
    required=1,
    failures_allowed=0,
    function_done=True,
    keep=70.0,
    reach=("mail",),
    spent=(("api:eu", 9),),
)
DONE = Outcome(id="j2", version=1, state=State.SUCCEEDED, result="null")
PRESENCE = Presence(
    worker="w",
    host="h",
    pid=12,
    queues=("mail",),
    tasks=("t",),
    slots=4,
    running=1,
    uptime=3.5,
    ttl=45.0,
    gone=True,
    paused=1.5,
    gathering=(("batch", 0.5, 1.0),),
    draining="it is 3 h old",
    age=0.25,
    versions=("ab12cd34",),
    labels=(("gpu", "a100"),),
    resources=(("memory_mb", 8192, 2048),),
    needs=(Needs("t", (("gpu", ("a100", "h100")),), (("memory_mb", 2048),)),),
    reserved="t",
)
RENEWAL = LeaseRenewal("j1", 4, (("step", "1"),), "0.5", ("mail",))
RULE = Limit(
    "api", slots=3, rate=10, per=60.0, how="bucket", burst=5, hold="ended", max_waiting=9, when_full="drop_oldest"
)
PAUSE = Pause("api", "held", 2000.0)
CHANGES = (RULE, Declare(Limit("queue:mail", slots=1)), PAUSE, Resume("api", "paused", 2000.0))
MARK = MoveState(role="filling", other="redis://r", move="m1", cursor="c", jobs=3, turn=2, run="run", step=4)
MEASURED = MetricsRow(at=960.0, span=60.0, source="w", data=b"\x00\xff")
CHUNK = Chunk(
    jobs=(Carried(record=RECORD, holds_key=True, edges=(Edge("a", 4, True, True),), behind="b"),),
    rules=(LimitFacts(name="api", set=RULE, declared=RULE, pauses=(PAUSE,)),),
    rates=(Rate("api", ((1.0, 2),), 3.5, 4.0, 0.5),),
    cursor="c",
    metrics=(MEASURED,),
)
USE = LimitUse(
    key="api:eu",
    rule=RULE,
    used=1,
    blocked=2,
    starts=3,
    next_start=4.5,
    opens=5.5,
    pauses=(PAUSE,),
    behind=RULE,
    declared=True,
)
GLANCE = Glance(
    at=1000.5,
    queues=(
        QueueGlance(
            name="mail",
            queued=7,
            queued_capped=True,
            oldest=1.5,
            running=1,
            scheduled=2,
            blocked=3,
            waiting=4,
            failed=5,
        ),
    ),
    workers=(PRESENCE,),
    limits=(USE,),
    capped=("failed",),
)
QUERY = Query(order="due", ready="scheduled", since=1.5, scan=10, cursor="c", queue="mail")
PAGE = Page((RECORD,), "c", 1, 10, 2.5)

OPS: Final[dict[str, log_entries.Op]] = {
    "enqueue": log_entries.EnqueueOp((JOB, PLAIN)),
    "claim": log_entries.ClaimOp(CLAIM),
    "settle": log_entries.SettleOp((OUTCOME, DONE)),
    "settle_claim": log_entries.SettleClaimOp((DONE,), Claim(worker="w#3")),
    "beat": log_entries.HeartbeatOp(PRESENCE, (RENEWAL, LeaseRenewal("j2", 1)), 30.0),
    "limits": log_entries.SetLimitsOp(log_entries.UnboundedLimitChanges.of(CHANGES)),
    "prune": log_entries.PruneOp(500),
    "metrics": log_entries.StoreMetricsOp((MEASURED,), (MetricsRow(at=1.0, span=60.0, source=""),)),
    "mark": log_entries.SetMarkOp(MARK),
    "load": log_entries.LoadOp(CHUNK, MARK),
    "announce": log_entries.AnnounceOp("part", 2),
    "tidied": log_entries.TidiedOp(7, ("part",)),
}
ENTRIES: Final[dict[str, Any]] = {
    **{f"entry:{name}": log_entries.LogEntry("e1", 1000.5, 1, "e0", (op,)) for name, op in OPS.items()},
    "entry:several": log_entries.LogEntry("e1", 1000.5, 1, ops=(OPS["prune"], OPS["announce"])),
    "entry:parts": log_entries.LogEntry("e1", 1000.5, 1, "e0", parts=("part", 2)),
    "base": log_entries.Base(7, "part", 2),
}

HTTP: Final[dict[str, Any]] = {
    "http:enqueue": messages.Enqueue((JOB, PLAIN)),
    "http:records": messages.Records((RECORD, None)),
    "http:claim": messages.claim_call(CLAIM, 2**20),
    "http:claim short": messages.claim_call(Claim(worker="w"), 2**20),
    "http:claim of a runner": messages.ClaimCall(worker="w", wait=30.0, max_lost=3),
    "http:claimed": Claimed((RECORD,), 1.5),
    "http:beat": messages.Beat(PRESENCE, (RENEWAL,), 30.0),
    "http:held": messages.HeartbeatResult(("j1",), ("j2",)),
    "http:held all": messages.HeartbeatResult(()),
    "http:outcomes": messages.Outcomes((OUTCOME, DONE)),
    "http:settle": messages.Settle((messages.RunReport(id="j1", version=4, succeed=msgspec.Raw(b"[1]")),)),
    "http:settle again": messages.Settle((messages.RunReport(id="j1", version=4, followups=(PLAIN,), again=True),)),
    "http:settled": messages.AllSettled((Settled("applied"), Settled("refused", "no", True))),
    "http:settle_claim": messages.SettleClaim((DONE,), messages.claim_call(CLAIM, 2**20)),
    "http:settled claimed": messages.SettledClaimed((Settled("applied"),), Claimed((), None)),
    "http:ids": messages.Ids(("j1",)),
    "http:glance": messages.GlanceCall(100),
    "http:glanced": GLANCE,
    "http:query": QUERY,
    "http:page": PAGE,
    "http:store_metrics": messages.StoreMetrics((MEASURED,)),
    "http:read_metrics": messages.ReadMetrics(1.0, 2.5),
    "http:metrics": messages.MetricsRows((MEASURED,)),
    "http:limits": messages.LimitsCall(False),
    "http:limit uses": messages.LimitUses((USE,)),
    "http:set_limits": messages.LimitChanges.of(CHANGES),
    "http:prune": messages.Prune(100),
    "http:number": messages.Number(3),
    "http:watch": messages.Watch(("queue:mail",), 5.0),
    "http:topics": messages.Topics(("queue:mail",)),
    "http:hello": messages.Hello(2**25, ("work",), ("mail",), messages.Moving("gone", "redis://r")),
    "http:nothing": messages.Nothing(),
    "http:problem": messages.Problem("stale", "it has moved on", {"id": "j1", "found": 4}),
}
MESSAGES: Final = {**ENTRIES, **HTTP}
BOUNDS: Final = frozenset({"min_length", "max_length", "pattern", "gt", "ge", "lt", "le", "multiple_of"})


def test_every_recorded_message_is_compared() -> None:
    assert MESSAGES.keys() == BYTES.keys()


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_is_written_in_the_recorded_bytes(name: str) -> None:
    assert msgspec.json.encode(MESSAGES[name]).decode() == BYTES[name]


@pytest.mark.parametrize("name", MESSAGES)
def test_the_recorded_bytes_are_read_as_the_message(name: str) -> None:
    text, message = BYTES[name].encode(), MESSAGES[name]
    assert msgspec.json.decode(text, type=type(message)) == message


@pytest.mark.parametrize("name", OPS)
def test_an_op_is_read_where_it_is_stored_in_parts(name: str) -> None:
    text = msgspec.json.encode(OPS[name])
    assert text in BYTES[f"entry:{name}"].encode()
    assert log_entries.decode_ops(b"[" + text + b"]") == (OPS[name],)


def test_a_draft_is_written_as_its_entry() -> None:
    for name, op in OPS.items():
        draft = log_entries.Draft("e1", 1000.5, 1, "e0", (msgspec.Raw(msgspec.json.encode(op)),))
        assert log_entries.encode(draft).decode() == BYTES[f"entry:{name}"]


def test_no_list_of_an_entry_has_a_bound() -> None:
    """One call may have any number of jobs. If the decoder had a limit, such an entry would make the log unreadable."""
    kinds = info.multi_type_info([log_entries.LogEntry, log_entries.Base, tuple[log_entries.Op, ...]])
    assert list(bounds_in(kinds, set())) == []


def test_the_lists_of_a_request_have_a_bound() -> None:
    assert list(bounds_in(info.type_info(messages.Enqueue), set())) == [("max_length", messages.LONG)]


def bounds_in(found: Any, seen: set[type]) -> Iterator[tuple[str, object]]:
    """The limits of a type and of all types in it."""
    if isinstance(found, tuple | list):
        for each in found:
            yield from bounds_in(each, seen)
    elif isinstance(found, info.Type | info.Field):
        kind = getattr(found, "cls", None)
        if kind in seen:
            return
        if kind is not None:
            seen.add(kind)
        for name in found.__struct_fields__:
            value = getattr(found, name)
            if name in BOUNDS and value is not None:
                yield name, value
            if name not in ("default", "default_factory"):
                yield from bounds_in(value, seen)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"worker":{"worker":"w"}}', messages.Beat(Presence(worker="w"))),
        (b'{"worker":"w"}', messages.ClaimCall(worker="w")),
        (b"{}", messages.Prune()),
        (b"{}", messages.LimitsCall()),
        (b'{"topics":[]}', messages.Watch(())),
        (b'{"outcomes":[{"id":"j1","version":4}]}', messages.Settle((messages.RunReport(id="j1", version=4),))),
    ],
)
def test_fields_may_be_left_out_of_a_request(body: bytes, message: object) -> None:
    assert msgspec.json.decode(body, type=type(message)) == message
