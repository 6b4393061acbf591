"""The code of the guides under mypy --strict and pyright in strict mode, as readers check their own code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.docs.blocks import PYTHON, blocks
from treadle_testkit.shows import shows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
PAGES = ["docs/guides/composing.md", "docs/guides/fastapi.md"]  # those whose examples are typed throughout
PYRIGHT = {
    "typeCheckingMode": "strict",
    "pythonVersion": "3.11",
    "extraPaths": [str(ROOT / "src")],
    # A page is checked as one function. FastAPI's own pages write AsyncIterator, which is deprecated.
    **dict.fromkeys(("reportUnusedFunction", "reportUnusedVariable", "reportUnusedImport", "reportDeprecated"), False),
}


def write_modules(page: str, folder: Path) -> None:
    """Write the code of a page: its files, and the other blocks as the body of one coroutine."""
    lines = ["async def page() -> None:", "    pass"]
    for block in blocks((ROOT / page).read_text(encoding="utf-8"), page):
        if block.no_run or block.language not in PYTHON:
            continue
        if block.file:
            (folder / block.file).write_text(block.code)
        else:
            lines += [f"    # line {block.line}", textwrap.indent(block.code, "    ")]
    (folder / "page.py").write_text("\n".join(lines))
    (folder / "pyrightconfig.json").write_text(json.dumps(PYRIGHT))


@shows("Typed code of the guides is right for mypy --strict and for pyright in strict mode")
@pytest.mark.parametrize("page", PAGES)
def test_type_checkers_accept_the_code_of_a_page(page: str, tmp_path: Path) -> None:
    write_modules(page, tmp_path)
    cache = f"--cache-dir={ROOT / '.mypy_cache' / 'docs'}"
    for words in (["mypy", "--strict", cache, "."], ["basedpyright", "--pythonpath", sys.executable, "."]):
        ended = subprocess.run(
            [BIN / words[0], *words[1:]],
            cwd=tmp_path,
            env=os.environ | {"MYPYPATH": str(ROOT / "src")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
