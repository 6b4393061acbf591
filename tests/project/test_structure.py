"""The figures of `tools/structure.py`, and the one that must stay zero."""

from __future__ import annotations

from pathlib import Path

from tools import structure

ROOT = Path(__file__).resolve().parents[2]


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Those imported for type checkers only, or inside functions, count too."""
    figures = dict(structure.figures(ROOT / "src/treadle"))
    assert figures["circles of imports"] == "0"
