"""Names of a package that are imported when they are first used (PEP 562).

`import treadle` loads none of the library in this way; `from treadle import App` loads what App needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module


def lazy_names(
    package: str, namespace: dict[str, object], modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` for a package: `modules` lists the names that each module defines. A name that is
    used once is kept in the `namespace` of the package."""
    places = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> object:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=None)
        object = namespace[name] = getattr(import_module(places[name]), name)
        return object

    def listed() -> list[str]:
        return sorted({*namespace, *places})

    return get, listed


def stubbed_names(
    package: str, file: str, namespace: dict[str, object]
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` for a package whose stub, the `.pyi` next to its `file`, has one line for
    each name: `from module import Name as Name`."""
    modules: dict[str, list[str]] = {}
    with open(f"{file.removesuffix('c')}i", encoding="utf-8") as stub:
        for line in stub:
            match line.split():
                case ["from", module, "import", name, "as", _]:
                    modules.setdefault(module, []).append(name)
    return *lazy_names(package, namespace, modules), sorted(name for names in modules.values() for name in names)
