"""Modules that cannot be imported: each message says what to do, and shows no frame of ours."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import treadle
from treadle.cli.app_loader import find_app
from treadle.cli.output import FAILED, Stop

APP = "from treadle import App\napp = App('memory://')\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the modules, which are forgotten after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    return tmp_path


def refused(named: str, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """The printed traceback, and the message of the error."""
    with pytest.raises(Stop) as caught:
        find_app(named)
    assert caught.value.code == FAILED
    return capsys.readouterr().err, caught.value.text


def test_a_wrong_declaration_shows_the_line_and_no_frame_of_ours(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "mistaken.py").write_text(f"{APP}@app.task(retries=3)\nasync def send() -> None: ...\n")
    printed, text = refused("mistaken:app", capsys)
    assert 'mistaken.py", line 3' in printed
    assert "did you mean retry=" in printed
    assert str(Path(treadle.__file__).parent) not in printed
    assert text == "'mistaken:app' cannot be imported: it raised the error above"


def test_an_import_circle_of_modules_is_an_error_of_one_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "round_app.py").write_text(f"from round_tasks import send\n{APP}")
    (here / "round_tasks.py").write_text("from round_app import app\n\n@app.task\nasync def send(): ...\n")
    _, text = refused("round_app:app", capsys)
    assert text.endswith("modules import each other: create the app in a module that does not import the tasks")


def test_a_relative_import_inside_of_a_package(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "__init__.py").touch()
    (here / "inner.py").write_text("from .other import app\n")
    _, text = refused("inner:app", capsys)
    assert text.endswith("name the file, as in tasks.py:app, or run in the directory above")


def test_a_module_that_exits_is_an_error_of_one_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "leaving.py").write_text(f"{APP}import sys\nsys.exit(3)\n")
    _, text = refused("leaving:app", capsys)
    assert text == (
        "'leaving:app' cannot be imported: the module calls sys.exit(3); move that behind "
        '`if __name__ == "__main__":`'
    )
