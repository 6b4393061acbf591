"""No test sleeps, and none polls but through tests/waiting.py.

A test that lets some time pass shows nothing on a slow machine, and costs that time on every other one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
SLEEPS = {"asyncio": {"sleep"}, "time": {"sleep"}, "tests.waiting": {"turn"}}
RUNS = "how long a job runs, which is the load"

# A file, or a function or class in it -> why it may. An entry that is not needed any more fails the test.
ALLOWED = {
    "waiting.py": "the one place that polls",
    "faults/test_outages.py::Shop.produce": "the pace of a caller: it must still send when the outage begins",
    "faults/workflows.py": RUNS,
    "simulate/poison.py": RUNS,
    "soak/poison.py": RUNS,
    "faults/workload.py": "how long a job runs, and the pace of the producer that is killed",
    "integrations/django/project/story.py": "a program of a user; it waits for another process",
    "simulate/deeds.py": "the time of the simulation",
    "simulate/mix.py": "the time of the simulation",
    "simulate/operators.py": "the time of the simulation",
    "simulate/orderly.py": "the time of the simulation",
    "simulate/budgets.py": "the time of the simulation",
    "simulate/rates.py": "the time of the simulation",
    "simulate/repeats.py": "the time of the simulation",
    "simulate/branches.py": "the time of the simulation",
    "simulate/saga.py": "the time of the simulation",
    "simulate/undo.py": "the time of the simulation",
    "simulate/tasks.py": "the time of the simulation",
    "simulate/mutants.py::pause_lost": "the time of the simulation",
    "simulate/test_gone_rows.py": "the time of the simulation",
    "simulate/test_history_repeats.py": "the time of the simulation",
    "simulate/test_resources.py": "the time of the simulation",
    "simulate/test_simulation.py::pay": "the time of the simulation",
    "soak/fleet.py::Fleet._stall": "how long a process stands still",
    "soak/nemesis.py": "how long a fault lasts",
    "soak/producer.py": "the pace of a producer",
    "soak/tasks.py": RUNS,
    "soak/trial.py": "how long the soak lasts, and the pause between two looks at the fleet",
}


class Finder(ast.NodeVisitor):
    """The calls that sleep, that poll in a loop over `sleep(0)`, or that give a number of turns to wait for."""

    def __init__(self) -> None:
        self.found: list[tuple[str, int, str]] = []  # qualified name, line, what is wrong
        self._names: dict[str, tuple[str, str]] = {}  # local name -> module, and name in it or ""
        self._within: list[str] = []
        self._loops: list[ast.AST] = []  # of the function at hand, outermost first

    # --- names

    def visit_Import(self, node: ast.Import) -> None:
        for each in node.names:
            self._names[each.asname or each.name] = (each.name, "")

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for each in node.names:
            self._names[each.asname or each.name] = (node.module or "", each.name)

    def _called(self, node: ast.expr) -> tuple[str, str]:
        """The module and the name of a function."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id, ("", node.id))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            return self._names.get(node.value.id, ("", ""))[0], node.attr
        return "", ""

    # --- where it is

    def _enter(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        loops, self._loops = self._loops, []
        self._within.append(node.name)
        self.generic_visit(node)
        self._within.pop()
        self._loops = loops

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _enter

    def _loop(self, node: ast.While | ast.For | ast.AsyncFor) -> None:
        self._loops.append(node)
        self.generic_visit(node)
        self._loops.pop()

    visit_While = visit_For = visit_AsyncFor = _loop

    # --- what is wrong

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        module, name = self._called(node.func)
        wrong = ""
        if name in SLEEPS.get(module, ()):
            wrong = self._sleep(name, node)
        elif (module, name) == ("asyncio", "wait"):
            limits = [each.value for each in node.keywords if each.arg == "timeout"]
            if limits and isinstance(limits[0], ast.Constant) and isinstance(limits[0].value, int | float):
                wrong = "lets a time pass" if limits[0].value < 1 else ""
        if wrong:
            self.found.append((".".join(self._within), node.lineno, wrong))

    def _sleep(self, name: str, node: ast.Call) -> str:
        """The fault of this call; "" if there is none."""
        given = node.args[0] if node.args else None
        number = given.value if isinstance(given, ast.Constant) else None
        if name == "sleep" and number != 0:
            return "sleeps"
        if name == "turn" and number is not None:
            return "waits for a number of turns"
        return "polls in a loop" if self._polls(node) else ""

    def _polls(self, call: ast.Call) -> bool:
        """Whether a `while` stands around it, or a `for` that does nothing else."""
        for loop in self._loops:
            if isinstance(loop, ast.While):
                return True
            if isinstance(loop, ast.For | ast.AsyncFor) and len(loop.body) == 1 and _is_only(loop.body[0], call):
                return True
        return False


def _is_only(statement: ast.stmt, call: ast.Call) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return (value.value if isinstance(value, ast.Await) else value) is call


def findings(source: str) -> list[tuple[str, int, str]]:
    finder = Finder()
    finder.visit(ast.parse(source))
    return finder.found


def _entries(path: str, where: str) -> Iterator[str]:
    """The entries of ALLOWED that would allow this: of the file, of the class, of the function."""
    yield path
    parts = where.split(".")
    for count in range(1, len(parts) + 1):
        yield f"{path}::{'.'.join(parts[:count])}"


def test_no_test_sleeps_or_polls() -> None:
    needed, wrong = set[str](), list[str]()
    for file in sorted(TESTS.rglob("*.py")):
        path = file.relative_to(TESTS).as_posix()
        for where, line, what in findings(file.read_text()):
            if entry := next((each for each in _entries(path, where) if each in ALLOWED), None):
                needed.add(entry)
            else:
                wrong.append(f"tests/{path}:{line}: {where} {what}; see tests/waiting.py")
    assert not wrong, "\n".join(wrong)
    assert needed == ALLOWED.keys(), "these entries of ALLOWED are not needed any more"


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        ("await asyncio.sleep(0.1)", "sleeps"),
        ("await asyncio.sleep(seconds)", "sleeps"),
        ("await nap(0.1)", "sleeps"),
        ("time.sleep(1)", "sleeps"),
        ("for _ in range(200): await asyncio.sleep(0)", "polls in a loop"),
        ("while not done: await asyncio.sleep(0)", "polls in a loop"),
        (
            "while not done:\n        with lock:\n            await act()\n        await asyncio.sleep(0)",
            "polls in a loop",
        ),
        ("while not done: await turn(n)", "polls in a loop"),
        ("await turn(200)", "waits for a number of turns"),
        ("await asyncio.wait([task], timeout=0.05)", "lets a time pass"),
        ("await asyncio.sleep(0)", ""),
        ("await turn(n)", ""),
        ("for n in range(9):\n        await begin(n)\n        await asyncio.sleep(0)", ""),
        ("while True:\n        async def task(): await asyncio.sleep(0)", ""),
        ("await asyncio.wait([task])", ""),
        ("await asyncio.wait([task], timeout=LONG)", ""),
        ("await app.sleep(60)", ""),
    ],
)
def test_sleeps_and_polls_are_found(body: str, wrong: str) -> None:
    source = "import asyncio, time\nfrom asyncio import sleep as nap\nfrom tests.waiting import turn\n"
    source += f"class Shop:\n async def sell(self):\n    {body}\n"
    assert [(where, what) for where, _, what in findings(source)] == ([("Shop.sell", wrong)] if wrong else [])
