"""Which thread of a stuck worker process is the cause, and which of its jobs."""

from __future__ import annotations

import sys

import pytest

from treadle.worker import WorkerHealth
from treadle.worker.fleet.messages import Vitals
from treadle.worker.fleet.thread_stacks import Culprit, culprit_of, parsed
from treadle.worker.jobs_of_others import Place

WRITTEN = """Thread 0x00007f0000000003 (most recent call first):
  File "/usr/lib/python3.11/re/__init__.py", line 166 in match
  File "/srv/shop/tasks.py", line 41 in scan
  File "/lib/treadle/worker/executors/threads.py", line 60 in _work

Thread 0x00007f0000000002 (most recent call first):
  File "/lib/treadle/worker/executors/threads.py", line 58 in _work

Current thread 0x00007f0000000001 (most recent call first):
  File "/usr/lib/python3.11/selectors.py", line 468 in select
  File "/usr/lib/python3.11/asyncio/base_events.py", line 1884 in _run_once
"""
MAIN, IDLE, SCAN = 0x7F0000000001, 0x7F0000000002, 0x7F0000000003
BLOCKED = 'Current thread 0x00007f0000000001 (most recent call first):\n  File "/srv/shop/blocking.py", line 1 in sleep'
PID = 100
JOBS = [Place("a", "shop.scan", "/srv/shop/tasks.py", 38, "scan"), Place("b", "shop.mail", "/srv/shop/mail.py", 3, "f")]


def vitals(*threads: tuple[int, int, str]) -> Vitals:
    return Vitals(WorkerHealth(worker="w", stage="claiming", started=1), 0, list(threads))


def culprit(busy: int | None, *threads: tuple[int, int, str]) -> Culprit:
    return culprit_in(WRITTEN, busy, *threads)


def culprit_in(written: str, busy: int | None, *threads: tuple[int, int, str]) -> Culprit:
    found = culprit_of(PID, busy, parsed(written), vitals((PID, MAIN, "MainThread"), *threads), JOBS)
    assert found is not None
    return found


def test_the_thread_that_computes_keeps_the_lock() -> None:
    found = culprit(103, (102, IDLE, "treadle-1"), (103, SCAN, "treadle-2"))
    assert found.stack.ident == SCAN
    assert found.words(JOBS) == "job a of task shop.scan: treadle-2 keeps the interpreter's lock"
    assert "selectors" not in found.stack.text
    assert found.stack.text.endswith("in _work")


def test_a_thread_that_is_newer_than_the_last_vitals_is_the_one_they_do_not_name() -> None:
    assert culprit(103, (102, IDLE, "treadle-1")).stack.ident == SCAN


def test_two_jobs_of_one_task_are_both_named() -> None:
    found = culprit(103, (103, SCAN, "treadle-2"))
    twice = [JOBS[0], Place("c", "shop.scan", "/srv/shop/tasks.py", 38, "scan")]
    assert found.words(twice) == "one of the jobs a, c of task shop.scan: treadle-2 keeps the interpreter's lock"


def test_a_job_that_waits_while_the_event_loop_is_idle_keeps_the_lock() -> None:
    """It uses no processor time: an extension that waits for a device."""
    assert culprit(None, (102, IDLE, "treadle-1"), (103, SCAN, "treadle-2")).thread == "treadle-2"


@pytest.mark.parametrize("busy", [None, PID])
def test_otherwise_it_is_the_event_loop(busy: int | None) -> None:
    written = WRITTEN.replace("Current thread 0x00007f0000000001 (most recent call first):\n", f"{BLOCKED}\n")
    found = culprit_in(written, busy, (102, IDLE, "treadle-1"), (103, SCAN, "treadle-2"))
    assert (found.stack.ident, found.thread) == (MAIN, None)
    assert found.words(JOBS) == "the event loop is blocked"


def test_without_vitals_the_main_thread_is_the_last_one() -> None:
    found = culprit_of(PID, None, parsed(WRITTEN), None, [])
    assert found is not None
    assert found.stack.ident == MAIN
    assert culprit_of(PID, None, parsed(""), None, []) is None


@pytest.mark.skipif(sys.platform == "win32", reason="the supervisor needs signals and process groups")
def test_a_process_lists_its_threads() -> None:
    import threading

    from treadle.worker.fleet.supervisor_link import threads

    assert threads()[0] == (threading.get_native_id(), threading.get_ident(), "MainThread")
