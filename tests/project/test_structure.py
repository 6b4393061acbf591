"""The limits of `tools/structure.py`: no circles, no long files, functions and constructors, except with a reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from tools import structure
from tools.structure import FUNCTION, LINES, PARAMETERS, Figure

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (ROOT / "src/treadle", ROOT / "packages/testkit/src/treadle_testkit")

WIDE = {
    "treadle.app.app.App": "its parameters are the options of an app, all by keyword (decisions/facades.md)",
    "treadle.worker.worker.Worker": "its parameters are the options of a worker, all by keyword (decisions/facades.md)",
    "treadle.app.core.AppCore": "it receives the options of an app from `App`, and nothing else",
}
TABLE = "a table of routes, one entry for each operation"
ROWS = "one line for each column; a call for each would cost more than reading the row"
LONG = {
    "treadle.server.routes.jobs.operations": TABLE,
    "treadle.server.routes.operations.operations": TABLE,
    "treadle.server.routes.schedules.operations": TABLE,
    "treadle.server.routes.worker_protocol.operations": TABLE,
    "treadle.storage.redis.rows.record": ROWS,
    "treadle.storage.postgres.rows.record": ROWS,
    "treadle.storage.sqlite.rows.record": ROWS,
    "treadle_testkit.conformance.moving_kit.zoo": "one job of each kind that a move must carry",
}


def modules() -> list[structure.Module]:
    return [module for source in SOURCES for module in structure.modules(source)]


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Those imported for type checkers only, or inside functions, count too."""
    assert [structure.circles(structure.imports(source)) for source in SOURCES] == [[], []]


def test_no_file_is_longer_than_it_may_be() -> None:
    files = (Figure(module.lines, module.name) for module in modules())
    assert beyond(files, LINES, {}) == []


def test_no_constructor_has_more_parameters_than_it_may_have_without_a_reason() -> None:
    makers = (each for module in modules() for each in module.constructors)
    assert beyond(makers, PARAMETERS, WIDE) == []


def test_no_function_is_longer_than_it_may_be_without_a_reason() -> None:
    functions = (each for module in modules() for each in module.functions)
    assert beyond(functions, FUNCTION, LONG) == []


def beyond(every: Iterable[Figure], most: int, reasons: Mapping[str, str]) -> list[str]:
    """A line for each figure that is too large, and for each reason that is not needed any more."""
    large = [each for each in every if each.size > most]
    found = [f"{each.where}: {each.size}, at most {most}" for each in large if each.where not in reasons]
    return found + [f"{name}: its reason is not needed" for name in reasons.keys() - {each.where for each in large}]
