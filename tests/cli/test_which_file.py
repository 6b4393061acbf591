"""A worker says which file it uses, and why a producer may use another one; a path that it cannot use ends it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.cli.tools import Command
from tests.storage.sqlite.support import AS_NOBODY
from treadle_testkit.shows import shows

pytestmark = [
    pytest.mark.slow,  # each starts interpreters
    pytest.mark.skipif(sys.platform == "win32", reason="the supervisor needs signals and process groups"),
]

APP = """
from treadle import App
{more}
app = App({url!r})


@app.task(name="shop.send")
async def send() -> None:
    raise ValueError("card refused")


if __name__ == "__main__":
    send.enqueue_sync()
"""


def stopped(worker: Command) -> None:
    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0


@shows("a worker says that its file is new, and which file a program in the folder of the app uses")
def test_a_worker_in_another_folder_names_both_files(tmp_path: Path) -> None:
    shop, here = tmp_path / "shop", tmp_path / "here"
    shop.mkdir()
    here.mkdir()
    (shop / "shop.py").write_text(APP.format(url="sqlite:///jobs.db", more=""))
    with Command("worker", "shop.py:app", cwd=shop) as worker:
        worker.wait_for(f"{shop / 'jobs.db'} is new and empty")
        worker.wait_for("claiming jobs")
        stopped(worker)
    with Command("worker", "../shop/shop.py:app", cwd=here) as worker:
        worker.wait_for(f"{here / 'jobs.db'} is new and empty")
        worker.wait_for(f"jobs live in sqlite:///{here / 'jobs.db'}")
        worker.wait_for(f"a program started in {shop} uses {shop / 'jobs.db'}, not {here / 'jobs.db'}")
        stopped(worker)


@shows("a path that waiting cannot cure ends the worker with the reason: a folder, a missing folder, no right to write")
@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("sqlite:///folder", "is a folder; give the path of a file, such as"),
        ("sqlite:///missing/jobs.db", "does not exist; create it, or give another file"),
    ],
)
def test_a_path_that_waiting_cannot_cure(tmp_path: Path, url: str, reason: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "shop.py").write_text(APP.format(url=url, more=""))
    with Command("worker", "shop:app", cwd=tmp_path) as worker:
        worker.wait_for(reason)
        assert worker.ended() != 0


@pytest.mark.skipif(not AS_NOBODY, reason="needs two users")
@pytest.mark.parametrize("what", ["folder", "file"])
def test_a_path_without_the_right_to_write(what: str) -> None:
    from tests.storage.sqlite.support import open_folder

    with open_folder() as folder:
        (folder / "shop.py").write_text(APP.format(url=f"sqlite:///{folder}/jobs.db", more=f"import os\n{AS_NOBODY}"))
        if what == "file":
            os.chmod(folder, 0o777)
            with Command("worker", "shop:app", cwd=folder) as worker:
                worker.wait_for("claiming jobs")
                stopped(worker)
            for file in folder.glob("jobs.db*"):
                os.chown(file, 0, 0)
                os.chmod(file, 0o644)
        with Command("worker", "shop:app", cwd=folder) as worker:
            worker.wait_for("is not writable for user 65534")
            assert worker.ended() != 0


@shows("a worker logs failed jobs although its app calls logging.config.dictConfig with the defaults")
def test_dict_config_of_the_app(tmp_path: Path) -> None:
    more = (
        "import logging.config\n"
        "logging.config.dictConfig({'version': 1, 'handlers': {'h': {'class': 'logging.StreamHandler'}}, "
        "'root': {'handlers': ['h'], 'level': 'INFO'}})\n"
    )
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    (tmp_path / "shop.py").write_text(APP.format(url=url, more=more))
    with Command("enqueue", "shop.send", "--app", "shop:app", cwd=tmp_path) as enqueue:
        assert enqueue.ended() == 0
    with Command("worker", "shop:app", cwd=tmp_path) as worker:
        worker.wait_for("card refused")
        stopped(worker)
