"""Producers in a process whose threads gevent or eventlet has replaced."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures import KINDS, a_url
from treadle_testkit.shows import shows

PROGRAM = """
import sys
if sys.argv[1] == "gevent":
    from gevent import monkey
    monkey.patch_all()
    import gevent
    def all_of(call, many):
        greenlets = [gevent.spawn(call, n) for n in range(many)]
        gevent.joinall(greenlets, raise_error=True)
        return [each.value for each in greenlets]
else:
    import eventlet
    eventlet.monkey_patch()
    def all_of(call, many):
        return list(eventlet.GreenPool(many).imap(call, range(many)))
from treadle import App
app = App(sys.argv[2])
task = app.stub("shop.send")
jobs = all_of(lambda n: task.enqueue_sync(n), 50)
assert len({job.id for job in jobs}) == 50
assert app.sync.jobs.get(jobs[0].id).job.queue == "default"
try:
    jobs[0].result_sync(timeout=0.2)
except TimeoutError:
    print("no worker, no result")
app.sync.close()
task.enqueue_sync(50)
app.sync.close()
print("closed")
"""


@pytest.mark.slow
@shows("greenlets of gevent and eventlet enqueue and wait: the event loop has a real thread")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("library", ["gevent", "eventlet"])
def test_fifty_greenlets_enqueue(library: str, kind: str, tmp_path: Path) -> None:
    with a_url(kind, tmp_path) as url:
        program = [sys.executable, "-W", "ignore", "-c", PROGRAM, library, url]
        done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "no worker, no result\nclosed\n", done.stderr
    assert "Traceback" not in done.stderr
