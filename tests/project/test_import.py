"""The modules that an import of Treadle loads: most web servers and management commands use a small part of it."""

from __future__ import annotations

import ast
import importlib
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

LAZY = ("treadle.app",)
STUBBED = (
    *("treadle", "treadle.blobs", "treadle.execution", "treadle.metrics", "treadle.ports", "treadle.resources"),
    *("treadle.storage", "treadle.worker", "treadle.worker.fleet", "treadle.worker.probes"),
)
NOT_FOR_APP = (
    *("treadle.cli", "treadle.contrib", "treadle.server", "treadle.testing", "treadle.worker.core"),
    *("treadle.ports.file", "treadle.ports.memory", "treadle.storage.sqlite", "treadle.storage.postgres"),
    *("treadle.storage.redis", "treadle.storage.http", "treadle.integrations"),
    *("click", "redis", "psycopg", "aiohttp", "starlette", "uvicorn", "django", "sqlalchemy"),
)


def loaded(code: str) -> set[str]:
    """The modules that a fresh process has loaded after this code, and a bare one has not."""
    show = f"import json, sys; before = set(sys.modules); {code}; print(json.dumps([*set(sys.modules) - before]))"
    done = subprocess.run([sys.executable, "-I", "-c", show], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_import_treadle_loads_none_of_the_library() -> None:
    found = loaded("import treadle")
    assert {name for name in found if name.startswith("treadle")} == {
        "treadle",
        "treadle.core",
        "treadle.core.lazy_names",
    }
    assert not found & {"asyncio", "dataclasses", "inspect", "logging", "msgspec", "re", "typing"}


def test_an_app_loads_no_worker_no_storage_and_no_server() -> None:
    found = loaded("from treadle import App")
    assert "treadle.app" in found
    assert not {name for name in found if name.startswith(NOT_FOR_APP)}


@pytest.mark.parametrize("name", STUBBED)
def test_the_stub_of_a_package_has_a_line_for_each_of_its_names(name: str) -> None:
    package = importlib.import_module(name)
    assert package.__file__ is not None
    stub = ast.parse(Path(f"{package.__file__}i").read_text())
    lines = [
        (node.module, [(alias.name, alias.asname) for alias in node.names])
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
    ]
    assert [names for _, names in lines] == [[(name, name)] for _, [(name, _)] in lines]
    assert sorted(name for _, [(name, _)] in lines) == package.__all__
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    assert not set(package.__all__) & modules, "an import of the module would replace the name"
    for module, [(name, _)] in lines:
        assert module is not None
        assert getattr(package, name) is getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("package", LAZY)
def test_the_lazy_names_of_a_package_are_those_that_type_checkers_see(package: str) -> None:
    module = importlib.import_module(package)
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text())
    [branch] = [node for node in tree.body if isinstance(node, ast.If)]
    typed = {
        alias.name: node.module for node in branch.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    [lazy] = [node for node in ast.walk(tree) if isinstance(node, ast.Dict)]
    places = {name: place for place, names in ast.literal_eval(lazy).items() for name in names}
    assert places == typed
    assert set(places) <= set(module.__all__)
    modules = {found.name for found in pkgutil.iter_modules(module.__path__)}
    assert not set(places) & modules, "an import of the module would replace the name"
    for name in module.__all__:
        assert getattr(module, name) is not None
    assert set(dir(module)) >= set(module.__all__)
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nothing'"):
        _ = module.nothing
