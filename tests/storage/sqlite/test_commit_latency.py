"""Where a commit that syncs is made: on the loop if commits are known to be fast, else in a thread."""

from __future__ import annotations

from pathlib import Path

import pytest

from treadle.core.model import NewJob
from treadle.storage.sqlite import SqliteStorage, shared_transaction
from treadle.storage.sqlite.shared_transaction import BACKOFF, FAST, MAX_JOBS, WARMUP, CommitLatency


def test_a_disk_counts_as_fast_after_enough_fast_commits() -> None:
    it = CommitLatency()
    for _ in range(WARMUP):
        assert it.most < 0
        it.took(FAST / 2, held=False)
    assert it.most == MAX_JOBS


def test_a_slow_commit_in_a_thread_counts_as_slow_for_a_time() -> None:
    it = CommitLatency()
    for _ in range(WARMUP - 1):
        it.took(FAST / 2, held=False)
    it.took(2 * FAST, held=False)
    it.took(FAST / 2, held=False)
    assert it.most < 0


def test_a_disk_that_blocked_the_loop_counts_as_slow_for_a_time() -> None:
    it = CommitLatency()
    for _ in range(WARMUP):
        it.took(FAST / 2, held=False)
    it.took(2 * FAST, held=True)
    for _ in range(BACKOFF):
        assert it.most < 0
        it.took(FAST / 2, held=False)
    assert it.most == MAX_JOBS


@pytest.mark.parametrize(("fast", "who"), [(60.0, {True, False}), (0.0, {False})])
async def test_the_loop_commits_itself_on_a_fast_disk_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fast: float, who: set[bool]
) -> None:
    monkeypatch.setattr(shared_transaction, "FAST", fast)
    held: set[bool] = set()
    took = CommitLatency.took

    def spied(self: CommitLatency, seconds: float, by_loop: bool) -> None:
        held.add(by_loop)
        took(self, seconds, by_loop)

    monkeypatch.setattr(CommitLatency, "took", spied)
    storage = SqliteStorage(str(tmp_path / "jobs.db"), synchronous="full")
    await storage.open()
    for n in range(2 * WARMUP):
        await storage.enqueue([NewJob(id=f"{n}", task="t")])
    await storage.close()
    assert held == who
