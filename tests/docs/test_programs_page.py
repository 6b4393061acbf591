"""The page of durable programs: each program with its sentence, and nothing of its test."""

from __future__ import annotations

import ast

from tests.docs.blocks import blocks
from tools.programs_page import PROGRAMS, page, section


def test_each_program_is_on_the_page() -> None:
    text = page()
    assert len(blocks(text)) == len([*PROGRAMS.glob("*.py")])
    for word in ("scenario", "LINES", "tests.faults"):
        assert word not in text


PROGRAM = '''"""A title: some words."""

from tests.faults.outside import effect, result

effect("result")


# --- in the tests
LINES = ["result"]
'''


def test_a_program_imports_what_it_uses() -> None:
    [block] = blocks(section(PROGRAM))
    assert ast.unparse(ast.parse(block.code)) == "from outside import effect\neffect('result')"
    assert section(PROGRAM).startswith("## A title\n\nSome words.\n")
