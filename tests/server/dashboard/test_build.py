"""The committed build of the dashboard belongs to its sources and to the API."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

from tools import apitypes, ui


def test_the_types_of_the_api_are_those_of_its_document() -> None:
    assert apitypes.FILE.read_text() == apitypes.text(), "run python -m tools.apitypes, then python3 dev.py ui"


def test_the_build_belongs_to_the_sources() -> None:
    ui.check_hash()


@pytest.mark.parametrize("bar", ui.bars(), ids=lambda bar: bar.what.partition(":")[0])
def test_a_browser_loads_no_more_than_the_bars_allow(bar: ui.Bar) -> None:
    assert 10_000 < bar.bytes <= bar.most


def test_the_page_names_all_scripts_of_the_first_page() -> None:
    """Otherwise a browser finds those that the entry imports only after a round trip."""
    entry, *others = ui.first_scripts(ui.STATIC / "assets")
    assert others
    named = re.findall(r'(?:href|src)="assets/([\w-]+\.js)"', (ui.STATIC / "index.html").read_text())
    assert sorted(named) == sorted([entry, *others])


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small tree of sources with its build, in place of ours."""
    source, static = tmp_path / "ui", tmp_path / "static"
    for path, text in (("src/main.tsx", "main"), ("package.json", "{}"), ("node_modules/x/index.js", "x")):
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_text(text)
    (static / "assets").mkdir(parents=True)
    (static / "assets/app-1.js").write_text("built")
    (static / "assets/app-1.js.gz").write_bytes(gzip.compress(b"built", mtime=0))
    for name, value in (("ROOT", tmp_path), ("SOURCE", source), ("STATIC", static)):
        monkeypatch.setattr(ui, name, value)
    (static / "build.json").write_text(json.dumps({"sources": ui.digest_of_sources(), "files": ui.digests(static)}))
    ui.check_hash()
    return tmp_path


@pytest.mark.parametrize(
    ("path", "text", "words"),
    [
        ("ui/src/main.tsx", "other", "ui/ has changed"),
        ("ui/src/more.ts", "new", "ui/ has changed"),
        ("static/assets/app-1.js", "edited", "assets/app-1.js"),
        ("static/assets/app-2.js", "left over", "assets/app-2.js"),
        ("static/build.json", "{", "there is no build"),
    ],
)
def test_a_build_that_does_not_belong_to_its_sources_is_found_without_node(
    copy: Path, path: str, text: str, words: str
) -> None:
    (copy / path).write_text(text)
    with pytest.raises(ui.Stale, match=words):
        ui.check_hash()


def test_packages_and_compressors_do_not_matter(copy: Path) -> None:
    (copy / "ui/node_modules/x/index.js").write_text("another version")
    (copy / "static/assets/app-1.js.gz").write_bytes(gzip.compress(b"built", 1, mtime=7))
    ui.check_hash()
