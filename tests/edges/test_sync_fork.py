"""`app.sync` carried through a fork, as by a web server that loads the program first: an error, not a hang."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os
from treadle import App, StorageError

app = App("sqlite:///jobs.db")

@app.task
def work() -> None: ...

app.sync.enqueue(work.job())
pid = os.fork()
if not pid:
    try:
        app.sync.enqueue(work.job())
    except StorageError as error:
        print(error, flush=True)
        os._exit(0)
    os._exit(1)
_, status = os.waitpid(pid, 0)
app.sync.close()
raise SystemExit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_a_child_is_told_that_the_app_was_used_before_the_fork(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, timeout=20, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "before this process was forked" in ran.stdout
