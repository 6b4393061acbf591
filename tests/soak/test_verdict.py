"""The rules that only the soak has: each accepts what a fault may cause, and finds a promise that is not kept."""

from __future__ import annotations

from typing import Any

import pytest

from tests.soak.verdict import agreeing, failed, strict
from treadle.core.model import NewJob, Record, State
from treadle.testing.history import Entry, Evidence

START = 1_000.0


def row(id: str, state: State = State.SUCCEEDED, reason: str | None = None, ended: float = 2.0, **job: Any) -> Record:
    new = NewJob(id=id, **{"task": "work", **job})
    return Record(job=new, version=2, state=state, reason=reason, created_at=START, ended_at=START + ended)


def claimed(id: str, at: float) -> Entry:
    return Entry(at=START + at, actor="w", what="claimed", id=id, version=1)


@pytest.mark.parametrize(("claim", "broken"), [(2.0, False), (1.9, True)])
def test_a_strict_limit_starts_a_job_after_the_one_before_has_ended(claim: float, broken: bool) -> None:
    account = (("account:1", 1),)
    rows = [row("a", limits=account), row("b", limits=account, ended=3.0), row("c", limits=(("account:2", 1),))]
    entries = [claimed("a", 1.0), claimed("b", claim), claimed("c", 1.0)]
    assert [each.rule for each in strict(Evidence(entries, rows))] == ["strict"] * broken


@pytest.mark.parametrize(
    ("found", "broken"),
    [
        (row("a"), False),
        (row("a", State.FAILED, "error"), True),
        (row("a", State.CANCELLED, "asked"), True),
        (row("acted", State.CANCELLED, "asked"), False),
        (row("a", State.CANCELLED, "superseded", key="k"), False),
        (row("a", State.CANCELLED, "upstream", key="k"), True),
        (row("a", State.CANCELLED, "asked", key="k"), True),
        (row("a", State.CANCELLED, "superseded"), True),
        (row("a", State.CANCELLED, "shed"), False),
        (row("treadle:signal:1", State.FAILED, "error", task=""), False),
        (row("a", State.READY), False),  # the checker's own rule
    ],
)
def test_no_job_fails_but_for_an_operator_a_key_or_a_full_queue(found: Record, broken: bool) -> None:
    assert [each.rule for each in failed(Evidence([], [found]), {"acted"})] == ["failed"] * broken


@pytest.mark.parametrize(
    ("tables", "broken"),
    [
        ({"soak_order": ["o"], "soak_done": ["b"]}, 0),
        ({}, 0),  # a storage without transactions
        ({"soak_order": [], "soak_done": ["b"]}, 1),
        ({"soak_order": ["o", "other"], "soak_done": ["b"]}, 1),
        ({"soak_order": ["o"], "soak_done": ["b", "unfinished"]}, 1),
        ({"soak_order": ["o", "o"], "soak_done": ["b"]}, 1),
    ],
)
def test_a_row_of_the_user_and_a_job_are_stored_together(tables: dict[str, list[str]], broken: int) -> None:
    rows = [row("o", task="ordered"), row("b", task="book"), row("unfinished", State.READY, task="book")]
    assert [each.rule for each in agreeing(Evidence([], rows), tables)] == ["transaction"] * broken
