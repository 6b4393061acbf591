"""The limits of `tools/sql_functions.py`: no long or wide function, no long file or line, no vague name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import sql_functions
from tools.sql_functions import FILE, LINES, PARAMETERS, ROOT, WIDTH

SOURCE = ROOT / "src/treadle"

EXAMPLE = """
-- A function.
CREATE FUNCTION found(a int[], INOUT made float8, OUT what numeric(3, 1)) LANGUAGE plpgsql AS $$
DECLARE
    each constant text := 'a';
    told text[];
BEGIN
    FOR left IN 1 .. 3 LOOP
        made := made + 1;
    END LOOP;
END $$;

CREATE FUNCTION plain(
    at float8) RETURNS int LANGUAGE sql AS $$
    SELECT 1
$$;
-- name: beat
SELECT 1;
"""


def test_no_function_is_longer_or_wider_than_it_may_be() -> None:
    assert [
        f"{it.where} {it.name}: {it.lines} lines, {len(it.parameters)} parameters"
        for it in sql_functions.functions(SOURCE)
        if it.lines > LINES or len(it.parameters) > PARAMETERS
    ] == []


def test_no_file_and_no_line_is_longer_than_it_may_be() -> None:
    sources = sql_functions.sources(SOURCE)
    assert [where for where, text in sources.items() if text.count("\n") > FILE] == []
    assert [
        f"{where}:{number}"
        for where, text in sources.items()
        for number, line in enumerate(text.splitlines(), 1)
        if len(line) > WIDTH
    ] == []


def test_no_name_is_vague() -> None:
    assert list(sql_functions.refused(SOURCE)) == []


def test_a_file_is_read_by_function(tmp_path: Path) -> None:
    (tmp_path / "example.sql").write_text(EXAMPLE)
    first, second = sql_functions.functions(tmp_path)
    assert first == ("example.sql:3", "found", 9, ("a", "made", "what"), ("each", "told", "left"))
    assert second == ("example.sql:13", "plain", 4, ("at",), ())
    refused = [line.rpartition(" ")[2] for line in sql_functions.refused(tmp_path)]
    assert refused == ["each", "found", "left", "made", "told", "beat"]


def test_a_function_without_an_end_is_reported(tmp_path: Path) -> None:
    (tmp_path / "open.sql").write_text("CREATE FUNCTION f() AS $$\n")
    with pytest.raises(AssertionError, match=r"open.sql: f does not end"):
        list(sql_functions.functions(tmp_path))
