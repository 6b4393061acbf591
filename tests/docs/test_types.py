"""The code of the guides under mypy --strict and pyright in strict mode, as readers check their own code."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.docs.blocks import PYTHON, blocks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
PAGES = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs" / "guides").glob("*.md"))]
"""The guides whose code has types."""


def modules(page: str, folder: Path) -> None:
    """Write the code of a page: its files, and the other blocks as the body of one coroutine."""
    body = ["async def page() -> None:"]
    for block in blocks((ROOT / page).read_text(encoding="utf-8"), page):
        if block.no_run or block.language not in PYTHON:
            continue
        if block.file:
            (folder / block.file).write_text(block.code)
            continue
        if block.fresh:
            body.append("async def page_again() -> None:")
        body.append(f"    # line {block.line}")
        body.append(textwrap.indent(block.code, "    "))
    (folder / "page.py").write_text("\n".join(body) + "\n    pass\n")
