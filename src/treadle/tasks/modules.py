"""Imports the modules in which an app's tasks are defined, when a worker or the command line needs all of them."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
from collections.abc import Iterable, Iterator
from typing import Final

from treadle.core.errors import BadOption

OPTION: Final = "autodiscover"


class TaskModules:
    """Names of packages and modules, imported by `load`."""

    def __init__(self) -> None:
        self._wanted: list[tuple[str, str]] = []  # package or module, name of the modules in it

    def add(self, name: str, module: str) -> None:
        """Want the modules called `module` of a package, or a plain module. Raises BadOption if it does not exist."""
        text: object = name
        if not isinstance(text, str) or not all(part.isidentifier() for part in text.split(".")):
            raise BadOption(OPTION, f"expected the dotted name of a package or module, found {name!r}")
        called: object = module
        if not isinstance(called, str) or not called.isidentifier():
            raise BadOption(OPTION, f"expected the name of a module in the package, such as 'tasks', found {module!r}")
        _exists(name)
        if (name, module) not in self._wanted:
            self._wanted.append((name, module))

    def load(self) -> None:
        """Import them. The second call imports nothing. Raises BadOption for a package that has no such module; errors
        of the modules themselves propagate."""
        while self._wanted:
            name, module = self._wanted[0]
            self._import(name, module)
            del self._wanted[:1]  # only now: after an error, the next call fails again

    def _import(self, name: str, module: str) -> None:
        package = importlib.import_module(name)
        folders = getattr(package, "__path__", None)
        if folders is None:
            return
        modules = list(_called(module, folders, f"{name}."))
        if not modules:
            raise BadOption(OPTION, f"package {name!r} and the packages in it have no module called {module!r}")
        for submodule in modules:
            importlib.import_module(submodule)


def _exists(name: str) -> None:
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # a parent package exists, and imports something that does not
        spec = None
    except ValueError:
        return  # `__main__`, or a module that a test has put into sys.modules
    if spec is None:
        raise BadOption(OPTION, f"there is no package or module {name!r} on sys.path")


def _called(module: str, folders: Iterable[str], prefix: str) -> Iterator[str]:
    """The dotted names of the modules called `module` in these folders of a package and in the packages below."""
    folders = list(folders)
    for info in pkgutil.iter_modules(folders):
        if info.name == module:
            yield prefix + info.name
        elif info.ispkg:
            below = [path for folder in folders if os.path.isdir(path := os.path.join(folder, info.name))]
            yield from _called(module, below, f"{prefix}{info.name}.")
