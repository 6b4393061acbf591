"""Every example in the README and in docs/ runs. CONTRIBUTING.md lists the comments that change how."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docs.blocks import pages
from tests.docs.run import run

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGES = [path.relative_to(ROOT).as_posix() for path in pages(ROOT)]


@pytest.mark.timeout(90)
@pytest.mark.parametrize("page", PAGES)
def test_the_code_blocks_of_a_page_run(
    page: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    ran = run(page, (ROOT / page).read_text(encoding="utf-8"), tmp_path)
    for block in ran.not_run:
        record_property("code block not run", block)
    assert not ran.error, f"{ran.error}\n{ran.output}"
