"""The contract that keeps the modules of a package private, on small graphs of imports."""

from __future__ import annotations

import grimp
import pytest

from tools.private_modules import PrivateModules


def graph(*imports: tuple[str, str]) -> grimp.ImportGraph:
    found = grimp.ImportGraph()
    for importer, imported in imports:
        found.add_import(importer=importer, imported=imported)
    return found


def check(public: set[str], *imports: tuple[str, str]) -> dict[str, list[object]]:
    contract = PrivateModules("private", {}, {"public": sorted(public)})
    found = contract.check(graph(*imports), verbose=False)
    assert found.kept == (not found.metadata["private"] and not found.metadata["unused"])
    return found.metadata


def test_a_module_is_private_to_its_package() -> None:
    across = ("t.app", "t.worker.core")
    deep = ("t.app", "t.worker.executors.threads")
    inside = ("t.worker.core", "t.worker.executors.threads")
    package = ("t.app", "t.worker")
    assert check(set(), across, deep, inside, package) == {"private": [across, deep], "unused": []}


@pytest.mark.parametrize("public", [{"t.worker.core"}, {"t.worker.*"}])
def test_a_public_module_may_be_imported(public: set[str]) -> None:
    assert check(public, ("t.app", "t.worker.core")) == {"private": [], "unused": []}


def test_a_public_folder_of_a_package_covers_its_modules_only() -> None:
    inside, beside = ("t.app", "t.server.doctor.sqlite"), ("t.app", "t.server.doctors")
    assert check({"t.server.doctor.*"}, ("t.app", "t.server.doctor"), inside, beside) == {
        "private": [beside],
        "unused": [],
    }


def test_a_public_module_that_no_other_package_imports_is_reported() -> None:
    inside = ("t.worker.core", "t.worker.leader")
    assert check({"t.worker.leader", "t.core.*"}, inside) == {"private": [], "unused": ["t.core.*", "t.worker.leader"]}


def test_the_report_of_a_broken_contract_names_the_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    contract = PrivateModules("private", {}, {"public": ["t.core.ids"]})
    contract.render_broken_contract(contract.check(graph(("t.app", "t.worker.core")), verbose=False))
    said = " ".join(capsys.readouterr().out.split())
    assert "t.app imports t.worker.core, which is private to t.worker: import it from t.worker, or add" in said
    assert "no other package imports t.core.ids: remove it from `public`" in said
