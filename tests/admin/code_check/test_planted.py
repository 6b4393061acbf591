"""`treadle storage check` finds every planted incompatibility, ignores harmless changes, and changes no byte."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from tests.admin.code_check.harmless import HARMLESS
from tests.admin.code_check.planted import PLANTED
from tests.admin.code_check.programs import Case, filled, words
from treadle.cli.root import treadle
from treadle_testkit.shows import shows


class Checked(NamedTuple):
    report: dict[str, Any]
    code: int
    changed: bool


def checked(folder: Path, cases: list[Case], monkeypatch: pytest.MonkeyPatch) -> Checked:
    """Fill a storage with the old version of these cases, and check the new version against it."""
    url = filled(folder, cases)
    imports = "".join(f"import after.{case.module}\n" for case in cases)
    (folder / "after" / "__init__.py").write_text(f"from treadle import App\napp = App()\n{imports}")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    for name in [name for name in sys.modules if name.partition(".")[0] == "after"]:
        del sys.modules[name]
    before = {name: (folder / name).read_bytes() for name in os.listdir(folder) if name.startswith("jobs.db")}
    ended = CliRunner().invoke(
        treadle, ["storage", "check", "after:app", "--url", url, "--json"], standalone_mode=False
    )
    assert ended.exception is None, ended.output
    after = {name: (folder / name).read_bytes() for name in os.listdir(folder) if name.startswith("jobs.db")}
    return Checked(json.loads(ended.stdout), ended.return_value, before != after)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Checked:
    with pytest.MonkeyPatch.context() as monkeypatch:
        return checked(tmp_path_factory.mktemp("planted"), PLANTED, monkeypatch)


@pytest.fixture(scope="module")
def harmless(tmp_path_factory: pytest.TempPathFactory) -> Checked:
    with pytest.MonkeyPatch.context() as monkeypatch:
        return checked(tmp_path_factory.mktemp("harmless"), HARMLESS, monkeypatch)


@shows("`treadle storage check` finds thirty-eight planted incompatibilities between code and stored jobs")
@pytest.mark.parametrize("case", PLANTED, ids=lambda case: case.what)
def test_a_planted_misfit_is_found(case: Case, planted: Checked) -> None:
    told = [words(each) for each in planted.report["findings"]]
    for expected in case.finds:
        assert any(each.startswith(expected) for each in told), "\n".join(told)


def test_each_finding_was_planted(planted: Checked) -> None:
    """No group is left over, each has an example or a count, and says what to do."""
    assert len(PLANTED) >= 30
    expected = [each for case in PLANTED for each in case.finds]
    for finding in planted.report["findings"]:
        assert any(words(finding).startswith(each) for each in expected), words(finding)
        assert finding["jobs"] == 1
        assert finding["example"] or finding["kind"] == "limit"
        assert finding["advice"]
    assert (planted.code, planted.changed) == (1, False)


@shows("`treadle storage check` raises no false alarm on twenty-eight harmless changes")
@pytest.mark.parametrize("case", HARMLESS, ids=lambda case: case.what)
def test_a_harmless_change_is_not_reported(case: Case, harmless: Checked) -> None:
    told = [words(each) for each in harmless.report["findings"]]
    names = case.fill.split("'")[1::2] or [case.module]
    assert not [each for each in told if any(name in each for name in names)]


def test_code_that_fits_exits_with_0(harmless: Checked) -> None:
    assert len(HARMLESS) >= 20
    assert harmless.report["findings"] == []
    assert harmless.report["jobs"] == harmless.report["looked"] > 20
    assert (harmless.code, harmless.changed) == (0, False)
