"""Each relative link of the documentation leads to a file, and each anchor to a heading of it."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parents[2]
FENCED = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(?<!`)(`+)(?!`)(?:(?!\n\n).)+?(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?[^)]*\)|\b(?:href|src)=\"([^\"]+)\"")
HEADING = re.compile(r"^#+ +(.*?) *#*$", re.MULTILINE)
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|//")


def pages() -> list[Path]:
    top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    return [*top, *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]


@functools.cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, the second and later ones of a text too, and those that it sets itself."""
    text = FENCED.sub("", page.read_text())
    found: set[str] = set()
    for heading in HEADING.findall(text):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\s-]", "", plain).strip()
        forms = {re.sub(r"\s", "-", slug), re.sub(r"[\s-]+", "-", slug)}  # GitHub's, and those of the site
        found |= {f"{form}-{number}" for form in forms & found for number in range(1, 4)} | forms
    return frozenset({*found, *re.findall(r"(?:id|name)=\"([^\"]+)\"", text), *re.findall(r"\{ *#([\w-]+)", text)})


def links(page: Path) -> Iterator[str]:
    text = CODE.sub("", FENCED.sub("", page.read_text()))
    for found in LINK.findall(text):
        target = unquote(next(filter(None, found)))
        if not ELSEWHERE.match(target):
            yield target


def broken(page: Path) -> Iterator[str]:
    for target in links(page):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        where = f"{page.name}: {target}"
        if not file.exists():
            yield f"{where}: no such file"
        elif anchor and file.suffix == ".md" and anchor not in anchors(file):
            yield f"{where}: no such heading"


def test_no_link_is_broken() -> None:
    assert [each for page in pages() for each in broken(page)] == []


def test_links_and_headings_are_found(tmp_path: Path) -> None:
    assert "labels-and-resources" in anchors(ROOT / "docs" / "guides" / "workers.md")
    assert sum(1 for each in pages() for _ in links(each)) > 500
    other, page = tmp_path / "other.md", tmp_path / "page.md"
    other.write_text("# Two `words`: here\n\n```\n# no heading\n```\n")
    page.write_text(
        "[a](other.md#two-words-here) [b](other.md#no-heading) `[c](x.md)` [d\ne](none.md) [f](https://x.y)"
    )
    assert list(links(page)) == ["other.md#two-words-here", "other.md#no-heading", "none.md"]
    assert [each.partition(": ")[2] for each in broken(page)] == [
        "other.md#no-heading: no such heading",
        "none.md: no such file",
    ]
