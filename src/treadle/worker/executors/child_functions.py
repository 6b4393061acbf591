"""Finds the functions of a process that runs `kind="process"`: by module and name, with the middleware of their app."""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path
from typing import Any, Protocol

from treadle.core.errors import BadTask
from treadle.core.injected import injected_names
from treadle.execution.middleware import Middleware, overrides
from treadle.serialization.call_codec import CallCodec
from treadle.tasks.core import TaskCore
from treadle.tasks.task import Task

MAINS = ("__main__", "__mp_main__")

FoundFunction = tuple[CallCodec, Any, TaskCore | None, list[Middleware]]


class NamedFunction(Protocol):
    """The part of a request that names a function; `codec`: whether the task has its own codec."""

    module: str
    qualname: str
    name: str
    codec: bool


class Places:
    """Finds functions by module and name, and the parent's script by its file."""

    def __init__(self, main: str | None, package: str | None) -> None:
        self._main, self._package = main, package
        self._known: dict[tuple[str, str, str], FoundFunction] = {}

    def find(self, ask: NamedFunction) -> FoundFunction:
        """The codec of the task, its function, the task, and the middleware of its app around the call. If the module
        does not declare the task: only the function. Raises BadTask, or the error of the import."""
        key = ask.module, ask.qualname, ask.name
        if key not in self._known:
            self._known[key] = self._load(ask)
        return self._known[key]

    def layers(self, method: str) -> list[Middleware]:
        """The middleware of all known apps that overrides the method, each once."""
        apps = {
            id(core.factory.sender): core.factory.sender for *_, core, _ in self._known.values() if core is not None
        }
        return [layer for sender in apps.values() for layer in overrides(sender.layers, method)]

    def _load(self, ask: NamedFunction) -> FoundFunction:
        module = self._script() if ask.module in MAINS else importlib.import_module(ask.module)
        function: Any = module
        for part in ask.qualname.split("."):
            function = getattr(function, part, None)
        for candidate in (*_wrapped(function), *vars(module).values()):
            # Not isinstance, which reads `__class__`: a lazy object such as Django's settings may raise there.
            if issubclass(type(candidate), Task) and candidate.name == ask.name:
                core: TaskCore = candidate._core
                return core.signature, core.call, core, overrides(core.factory.sender.layers, "call")
        if not callable(function):
            raise BadTask(
                f"{ask.name}: {ask.module} has no {ask.qualname} at its top level, so a process cannot run it"
            )
        if ask.codec or injected_names(function):
            lacks = "codec" if ask.codec else "dependencies"
            raise BadTask(
                f"{ask.name}: {ask.module}.{ask.qualname} is not that task, so the process does not know its {lacks}; "
                "make it a task in the module that defines it"
            )
        return CallCodec(ask.name, function), function, None, []

    def _script(self) -> types.ModuleType:
        """Import the parent's script under another name, so that its `__main__` block does not run again."""
        if "__mp_main__" in sys.modules:
            return sys.modules["__mp_main__"]
        if self._main is None:
            raise BadTask('kind="process" needs a function in a file, found one typed at a prompt')
        module = types.ModuleType("__mp_main__")
        module.__file__, module.__package__ = self._main, self._package
        if self._package:
            importlib.import_module(self._package)
        sys.modules["__mp_main__"] = sys.modules["__main__"] = module
        try:
            code = compile(Path(self._main).read_bytes(), self._main, "exec", dont_inherit=True)
            exec(code, module.__dict__)
        except BaseException:
            del sys.modules["__mp_main__"]  # the next job gets the error again, not half a module
            raise
        return module


def _wrapped(function: Any) -> list[Any]:
    """The layers of a decorated function, from the outside in."""
    layers: list[Any] = []
    while function is not None and function not in layers and len(layers) < 100:
        layers.append(function)
        function = getattr(function, "__wrapped__", None)
    return layers
