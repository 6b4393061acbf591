"""A worker says which file it uses, and why a producer may use another one; a path that it cannot use ends it."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from tests.cli.tools import Command
from treadle import App, Worker
from treadle.errors import StorageDenied
from treadle.storage.sqlite import opening
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


@shows("a path that waiting cannot cure ends the worker with the reason: a folder, no folder, no right to create it")
@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("sqlite:///folder", "is a folder; give the path of a file, such as"),
        ("sqlite:///missing/jobs.db", "does not exist; create it, or give another file"),
        (f"sqlite:///{'a' * 252}", "-lock: File name too long; give another file"),
        ("sqlite:///a%00b.db", "expected the path of a file, found a null character"),
    ],
)
def test_a_path_that_waiting_cannot_cure(tmp_path: Path, url: str, reason: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "shop.py").write_text(APP.format(url=url, more=""))
    with Command("worker", "shop:app", cwd=tmp_path) as worker:
        worker.wait_for(reason)
        assert worker.ended() != 0


@pytest.mark.parametrize("exists", [False, True])
async def test_a_worker_that_may_not_write_its_file_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    if exists:
        async with App(url):
            pass
    monkeypatch.setattr(opening, "_unwritable", lambda *_: "the folder is not writable for user 7")
    app = App(url)
    app.task(name="shop.send")(lambda: None)
    with pytest.raises(StorageDenied, match="the folder is not writable for user 7"):
        async with asyncio.timeout(30):
            await Worker(app).run()
    await app.close()


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
