"""`app.sync` in a forked child, as in a web server that loads the program and then forks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os
import sys
from treadle import App, StorageError
from treadle.storage.memory import MemoryStorage

app = App("sqlite:///jobs.db") if sys.argv[1] == "file" else App(storage=MemoryStorage())

@app.task
def work() -> None: ...

app.sync.enqueue(work.job())
pid = os.fork()
if not pid:
    try:
        app.sync.enqueue(work.job())
        app.sync.close()
    except StorageError as error:
        print(error, flush=True)
    os._exit(0)
_, status = os.waitpid(pid, 0)
print("jobs:", len(app.sync.call(app.jobs.list()).records), flush=True)
app.sync.close()
raise SystemExit(os.waitstatus_to_exitcode(status))
"""


def forked(kind: str, folder: Path) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, kind], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_a_child_opens_the_storage_for_itself(tmp_path: Path) -> None:
    assert forked("file", tmp_path) == "jobs: 2\n"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_a_child_of_an_app_in_memory_gets_an_error(tmp_path: Path) -> None:
    """The jobs are in the parent's memory: the child gets an error. It does not hang, and no job is lost silently."""
    said, jobs = forked("memory", tmp_path).splitlines()
    assert "this is its child" in said
    assert jobs == "jobs: 1"
