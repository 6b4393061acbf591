"""The page of coverage: each area has a test, and a marker that the page cannot show is refused."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path

import pytest

from benchmarks.__main__ import SMALLER
from tools import coverage_page
from tools.coverage_page import AREAS, MEASURED, ROOT, BadMarker, Marker, markers, repeated


@functools.cache
def ours() -> list[Marker]:
    return markers()


def test_each_sentence_is_on_one_test() -> None:
    assert repeated(ours()) == []


@pytest.mark.parametrize("area", AREAS)
def test_each_area_has_a_test(area: str) -> None:
    assert any(marker.area == area for marker in ours())


def test_each_area_names_paths_that_exist() -> None:
    for begins in AREAS.values():
        for begin in begins:
            assert (ROOT / begin).exists(), begin


def test_each_marker_is_on_a_function_that_is_run_or_type_checked() -> None:
    for marker in ours():
        assert marker.test.startswith("test_") or marker.path.startswith("tests/types/"), marker


def test_each_figure_has_a_benchmark() -> None:
    assert MEASURED.keys() <= {*SMALLER, ""}


# --- the script


def test_the_page_has_a_row_for_each_marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coverage_page, "PAGE", tmp_path / "reference/coverage.md")
    assert coverage_page.main() == 0
    rows = coverage_page.PAGE.read_text().splitlines()
    assert {f"| {marker.sentence} | `{marker.path}::{marker.test}` |" for marker in ours()} <= {*rows}


def one(root: Path, path: str, *decorators: str) -> Path:
    """A tree that has one test, at this path."""
    file = root / path
    file.parent.mkdir(parents=True)
    file.write_text("\n".join((*decorators, "async def test_it(): ...")))
    return root


def test_a_marker_among_other_decorators_is_found(tmp_path: Path) -> None:
    root = one(tmp_path, "tests/worker/test_new.py", "@pytest.mark.soak", '@shows("a worker works", "it " "rests")')
    assert [tuple(each) for each in markers(root)] == [
        ("Workers", "a worker works", "tests/worker/test_new.py", "test_it"),
        ("Workers", "it rests", "tests/worker/test_new.py", "test_it"),
    ]


def test_a_marker_may_name_its_area(tmp_path: Path) -> None:
    [marker] = markers(one(tmp_path, "tests/new/test_new.py", '@shows("a blob is blue", area="Blobs")'))
    assert marker.area == "Blobs"


@pytest.mark.parametrize(
    ("path", "decorator", "problem"),
    [
        ("tests/new/test_new.py", '@shows("a")', "no area has this file"),
        ("tests/worker/test_new.py", '@shows("a", area="Wonders")', "found 'Wonders'"),
        ("tests/worker/test_new.py", "@shows()", "expected a sentence, found none"),
        ("tests/worker/test_new.py", '@shows(f"a {b}")', "expected a plain string"),
        ("tests/worker/test_new.py", "@shows(*sentences)", "expected a plain string"),
        ("tests/worker/test_new.py", '@shows("a | b")', "a row of a table"),
        ("tests/worker/test_new.py", '@shows("a.")', "a row of a table"),
    ],
)
def test_a_marker_that_the_page_cannot_show_is_refused(tmp_path: Path, path: str, decorator: str, problem: str) -> None:
    with pytest.raises(BadMarker, match=problem):
        markers(one(tmp_path, path, decorator))


def test_a_sentence_on_two_tests_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = one(tmp_path, "tests/worker/test_new.py", '@shows("a worker works")')
    shutil.copy(root / "tests/worker/test_new.py", root / "tests/worker/test_newer.py")
    monkeypatch.setattr(coverage_page, "ROOT", root)
    assert coverage_page.main() == 1
    assert "on more than one test: 'a worker works'" in capsys.readouterr().err
