"""The tasks that the processes of test_forks run: their functions fork."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
from pathlib import Path

from treadle import App, Flow, flow
from treadle.worker.executors.child import Child, Done, Raised, frame

app = App("sqlite:///jobs.db?synchronous=normal")


@app.task
def leaf(n: int) -> int:
    return n


def send(n: int) -> str:
    return app.sync.enqueue(leaf.job(n)).id


@app.task(kind="process")
def fans_out(count: int) -> list[str]:
    """The default pool on Linux before 3.14: each process is a forked copy of this one."""
    with multiprocessing.get_context("fork").Pool(3) as pool:
        return pool.map(send, range(count), chunksize=1)


@app.task(kind="process")
def returns_a_flow(count: int) -> Flow[list[int]]:
    return flow([leaf.job(n) for n in range(count)], reduce="list")


def forks_and_exits(how: str, n: int) -> int:
    if os.fork() == 0:
        if how == "exit":
            sys.exit(0)
        if how == "raise":
            raise ValueError("in the child")
        return -1
    return n * n


def forks_a_pool(n: int) -> list[int]:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(abs, [-n, n])


def answers_for_another(kind: str, number: int) -> str:
    """Sends a frame that answers another request, as no code of Treadle does."""
    [child] = [each for each in gc.get_objects() if isinstance(each, Child)]
    done, error = Done(number, None), Raised(number, "other", [], "E", "m", "", "", None)
    child._channel.sendall({"done": frame(done, '"stolen"'), "raised": frame(error), "noise": b"\0" * 64}[kind])
    Path("began").touch()
    return "mine"
