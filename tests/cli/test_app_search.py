"""`treadle worker` without an argument finds the app and its modules of tasks, by reading and not by importing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.tools import Command
from treadle.cli import app_search
from treadle.cli.app_search import search
from treadle.cli.output import Stop

APP = "from treadle import App\napp = App()\n1 / 0  # a search imports nothing\n"


def write(here: Path, **files: str) -> Path:
    """Write `shop__app="..."` to shop/app.py."""
    for name, text in files.items():
        path = here.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return here


def package(here: Path, *names: str) -> None:
    for name in names:
        (here / name).mkdir(parents=True, exist_ok=True)
        (here / name / "__init__.py").touch()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (APP, "app"),
        ("import treadle\nqueue: treadle.App = treadle.App('sqlite:///x.db')\n", "queue"),
        ("import treadle as t\njobs = t.App()\n", "jobs"),
        ("from treadle import App as Treadle\njobs = Treadle()\n", "jobs"),
    ],
)
def test_every_form_of_an_app_is_found(tmp_path: Path, text: str, name: str) -> None:
    assert search(write(tmp_path, jobs=text)).named == f"jobs:{name}"


def test_the_modules_called_tasks_of_its_package_belong_to_it(tmp_path: Path) -> None:
    package(tmp_path, "shop", "shop/orders", "other")
    write(tmp_path, shop__app=APP, shop__tasks="", shop__orders__tasks="def broken(:", other__tasks="import shop.app")
    assert search(tmp_path).modules == ("shop.tasks", "shop.orders.tasks")


def test_those_that_import_an_app_outside_of_packages_belong_to_it(tmp_path: Path) -> None:
    package(tmp_path, "mail", "video")
    write(tmp_path, main=APP, tasks="from main import app", mail__tasks="import main", video__tasks="import treadle")
    assert search(tmp_path) == ("main:app", ("tasks", "mail.tasks"), tmp_path)


def test_src_is_searched_and_tests_and_programs_of_others_are_not(tmp_path: Path) -> None:
    package(tmp_path, "src/shop", "tests", "src/shop/tests")
    write(tmp_path, src__shop__app=APP, tests__apps=APP, conftest=APP, test_shop=APP, src__shop__tests__a=APP)
    write(
        tmp_path, other="from flask import Flask as App\napp = App()  # no treadle", local="def f():\n    app = App()\n"
    )
    assert search(tmp_path) == ("shop.app:app", (), tmp_path / "src")
    assert app_search.apps_in(tmp_path) == ["shop.app:app"]


def test_an_error_names_each_missing_ambiguous_or_broken_app(tmp_path: Path) -> None:
    with pytest.raises(Stop, match="name an app, as MODULE:APP: no module in"):
        search(tmp_path)
    write(tmp_path, broken="from treadle import App\napp = App(\n")
    with pytest.raises(Stop, match=r"broken.py, line 2: '\(' was never closed"):
        search(tmp_path)
    write(tmp_path, a=APP, b=APP)
    with pytest.raises(Stop, match=r"found 2 apps in .*; name one: a:app or b:app"):
        search(tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the supervisor needs signals")
def test_a_worker_runs_the_tasks_that_it_found(tmp_path: Path) -> None:
    package(tmp_path, "shop", "shop/mail")
    task = "from shop.app import app\n\n\n@app.task\nasync def send() -> int:\n    return 42\n"
    text = APP.partition("1 / 0")[0] + 'app.autodiscover("shop.mail", module="jobs")\n'
    write(tmp_path, shop__app=text, shop__tasks=task, shop__mail__jobs=task)
    with Command("worker", cwd=tmp_path) as worker:
        worker.wait_for("shop.app:app, shop.tasks")
        worker.wait_for("claiming")
        assert "shop.mail.jobs.send, shop.tasks.send" in worker.stderr
        worker.ctrl_c()
        assert worker.ended() == 0
