"""The threads of plain functions."""

from __future__ import annotations

import threading

import pytest

from treadle.concurrency.threads import starting
from treadle.worker.executors.threads import DaemonThreads


async def test_a_system_that_allows_no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads that there are make the call. Without any, the call fails, and is not made later."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    made, release = list[str](), threading.Event()
    pool = DaemonThreads(2, "t")
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            pool.run(lambda: made.append("refused"))
    first = pool.run(lambda: release.wait(60))
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        second = pool.run(lambda: made.append("second"))
    assert second not in starting
    release.set()
    assert await first == (True, None)
    assert await second == (None, None)
    assert made == ["second"]
    pool.close()
