"""A contract for import-linter: the modules of a package are private to it, except those that `public` lists.

Importing from a package itself, `from treadle.worker import Worker`, is always allowed: its `__init__` says what it
offers.
"""

from __future__ import annotations

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class PrivateModules(Contract):
    """Packages are the folders directly under the root package; a module of one may import all other modules of it.

    public  modules that other packages may import; `treadle.core.*` means that package and all modules of it. Each must
            be in use
    """

    type_name = "private_modules"

    public = fields.SetField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        public: set[str] = set(self.public)  # type: ignore[call-overload]  # a descriptor, in its own types
        found = sorted(_crossings(graph))
        private = [(importer, name) for importer, name in found if not any(_covers(entry, name) for entry in public)]
        unused = sorted(entry for entry in public if not any(_covers(entry, name) for _, name in found))
        return ContractCheck(kept=not private and not unused, metadata={"private": private, "unused": unused})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for importer, name in check.metadata["private"]:
            output.print_error(
                f"{importer} imports {name}, which is private to {_package(name)}: import it from {_package(name)}, or "
                "add the module to `public` in pyproject.toml",
                bold=False,
            )
        for name in check.metadata["unused"]:
            output.print_error(
                f"no other package imports {name}: remove it from `public` in pyproject.toml", bold=False
            )


def _covers(entry: str, module: str) -> bool:
    """Whether an entry of `public` means this module."""
    return module == entry or (entry.endswith(".*") and f"{module}.".startswith(entry[:-1]))


def _package(module: str) -> str:
    """`treadle.worker` for `treadle.worker.executors.threads`."""
    return ".".join(module.split(".")[:2])


def _crossings(graph: ImportGraph) -> set[tuple[str, str]]:
    """Importer and module for each import of a module inside a package from outside that package."""
    return {
        (importer, name)
        for name in graph.modules
        if name.count(".") > 1
        for importer in graph.find_modules_that_directly_import(name)
        if _package(importer) != _package(name)
    }
