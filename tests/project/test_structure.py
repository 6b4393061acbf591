"""The limits of `tools/structure.py` and `tools/scripts.py`: no circles, no long files, lines, functions and
constructors, except with a reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from tools import scripts, structure
from tools.structure import FUNCTION, LINES, PARAMETERS, Figure

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (ROOT / "src/treadle", ROOT / "packages/testkit/src/treadle_testkit")

WIDE = {
    "treadle.app.app.App": "its parameters are the options of an app, all by keyword (decisions/facades.md)",
    "treadle.worker.worker.Worker": "its parameters are the options of a worker, all by keyword (decisions/facades.md)",
    "treadle.integrations.pydantic_ai.durability.TreadleDurability": "the options of a capability, all by keyword",
    "treadle.app.core.AppCore": "it receives the options of an app from `App`, and nothing else",
}
ROWS = "one line for each column; a call for each would cost more than reading the row"
LONG = {
    "treadle.storage.redis.rows.record": ROWS,
    "treadle_testkit.conformance.moving_kit.zoo": "one job of each kind that a move must carry",
}
FORM = "one form, its fields from top to bottom"
LONG_SCRIPTS = {
    "ui/src/parts/Enqueue.tsx: Enqueue": FORM,
    "ui/src/parts/LimitDialog.tsx: LimitDialog": FORM,
}
SCRIPTS = scripts.files(".lua", ".ts", ".tsx")


def modules() -> list[structure.Module]:
    return [module for source in SOURCES for module in structure.modules(source)]


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Those imported for type checkers only, or inside functions, count too."""
    assert [structure.circles(structure.imports(source)) for source in SOURCES] == [[], []]


def test_no_scripts_of_the_dashboard_import_each_other_in_a_circle() -> None:
    """Those imported for their types only, or when a dialog opens, count too."""
    graph = structure.scripts(ROOT / "ui/src")
    assert "parts/open" in graph["shell/Shell"]
    assert structure.circles(graph) == []


def test_no_file_is_longer_than_it_may_be() -> None:
    files = (Figure(module.lines, module.name) for module in modules())
    assert beyond(files, LINES, {}) == []


def test_no_constructor_has_more_parameters_than_it_may_have_without_a_reason() -> None:
    makers = (each for module in modules() for each in module.constructors)
    assert beyond(makers, PARAMETERS, WIDE) == []


def test_no_function_is_longer_than_it_may_be_without_a_reason() -> None:
    functions = (each for module in modules() for each in module.functions)
    assert beyond(functions, FUNCTION, LONG) == []


def test_no_lua_or_typescript_file_is_longer_than_it_may_be() -> None:
    files = (Figure(path.read_text().count("\n"), path.name) for path in SCRIPTS)
    assert beyond(files, LINES, {}) == []


def test_no_lua_or_typescript_line_is_longer_than_it_may_be() -> None:
    assert [line for path in SCRIPTS for line in scripts.wide(path)] == []


def test_no_lua_or_typescript_function_is_longer_or_wider_than_it_may_be() -> None:
    functions = [each for path in SCRIPTS for each in scripts.functions(path)]
    assert len(functions) > 500
    assert beyond((Figure(each.lines, each.where) for each in functions), scripts.FUNCTION, LONG_SCRIPTS) == []
    assert beyond((Figure(each.parameters, each.where) for each in functions), scripts.PARAMETERS, {}) == []


def test_no_lua_or_typescript_name_is_a_private_word() -> None:
    names = [each for path in SCRIPTS for each in scripts.names(path)]
    assert scripts.private(names) == []
    assert scripts.vague(each for each in names if ".lua:" in each.where) == []


def test_functions_and_names_of_scripts_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts, "ROOT", tmp_path)
    lua, page = tmp_path / "a.lua", tmp_path / "b.tsx"
    lua.write_text(
        "local function owe(key, cost) -- for x in end\n  for at, each in ipairs({}) do\n"
        "    if at then return 'end' elseif cost then key = 1 end\n  end\nend\nfunction Row.read() return 1 end\n"
    )
    page.write_text(
        "/* const told */\nexport default function Page({ a }: { a: number, b: string }) {\n"
        "  const [found, setFound] = useState(0);\n  return <p>it's {a}</p>;\n}\n"
        "const add = (one: number, other: number): number => {\n  return one + other;\n};\n"
    )
    assert [tuple(each) for path in (lua, page) for each in scripts.functions(path)] == [
        ("a.lua: owe", 5, 2),
        ("a.lua: Row.read", 1, 1),
        ("b.tsx: Page", 4, 1),
        ("b.tsx: add", 3, 2),
    ]
    names = [each for path in (lua, page) for each in scripts.names(path)]
    assert [each.name for each in names] == ["owe", "at", "each", "read", "Page", "found", "setFound", "add"]
    assert scripts.private(names) == ["a.lua:1: owe"]
    assert scripts.vague(names) == ["a.lua:2: at", "a.lua:2: each", "b.tsx:3: found"]


def beyond(every: Iterable[Figure], most: int, reasons: Mapping[str, str]) -> list[str]:
    """A line for each figure that is too large, and for each reason that is not needed any more."""
    large = [each for each in every if each.size > most]
    found = [f"{each.where}: {each.size}, at most {most}" for each in large if each.where not in reasons]
    return found + [f"{name}: its reason is not needed" for name in reasons.keys() - {each.where for each in large}]
