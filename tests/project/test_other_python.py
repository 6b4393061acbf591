"""`dev.py test --python`: the folders that its root needs, and the exit code of a run in which no test has run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import dev
from tools import other_python


def test_the_folders_that_only_a_settings_file_of_pip_names_are_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / name for name in ("wheels", "more", "index/simple", "second/simple")]
    for folder in folders:
        folder.mkdir(parents=True)
    wheels, more, index, second = map(str, folders)
    settings = tmp_path / "pip.conf"
    settings.write_text(
        f"[global]\nfind-links = {wheels}\nextra-index-url =\n  file://{index}\n  file://{second}\ncert = /none.crt\n"
    )
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings))
    monkeypatch.setenv("PIP_FIND_LINKS", more)
    expected = {folders[0], folders[1], tmp_path / "index", tmp_path / "second"}
    assert expected <= set(other_python._folders_of_packages())


def test_a_python_that_cannot_be_had_is_no_failed_test(capsys: pytest.CaptureFixture[str]) -> None:
    assert other_python.main(["3.99"]) == dev.UNAVAILABLE
    assert "python 3.99: not tested: it is not installed" in capsys.readouterr().err


def test_a_failed_install_is_no_failed_test(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dev, "step", lambda name, command: (name, False, "exit code 1"))
    with pytest.raises(SystemExit) as ended:
        dev.must("the pinned packages did not install", "set-up: packages", [])
    assert ended.value.code == dev.UNAVAILABLE

    done = subprocess.CompletedProcess([], dev.UNAVAILABLE)
    monkeypatch.setattr(other_python, "_clone", lambda target: None)
    monkeypatch.setattr(other_python.interpreters, "found", lambda: {"3.15": Path("/usr/bin/python3.15")})
    monkeypatch.setattr(other_python.subprocess, "run", lambda *_, **__: done)
    assert other_python.main(["3.15"]) == dev.UNAVAILABLE
    assert "python 3.15: not tested: the pinned packages cannot be installed" in capsys.readouterr().err
    done.returncode = 1
    assert other_python.main(["3.15"]) == 1
