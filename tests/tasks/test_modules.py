"""`app.autodiscover`: which modules are imported, when, and that no mistyped name passes silently."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from treadle import App, BadOption, Worker

FILES = {
    "shop_d/__init__.py": "",
    "shop_d/tasks.py": "",
    "shop_d/orders/__init__.py": "",
    "shop_d/orders/tasks/__init__.py": "",
    "shop_d/orders/views.py": "1 / 0",
    "shop_d/plain/tasks.py": "1 / 0  # no package",
    "shop_d/empty/__init__.py": "",
    "shop_d/wrong/__init__.py": "",
    "shop_d/wrong/jobs.py": "1 / 0",
}


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield
    for name in [name for name in sys.modules if name.startswith("shop_d")]:
        del sys.modules[name]


def imported() -> set[str]:
    return {name for name in sys.modules if name.startswith("shop_d") and "tasks" in name}


def test_modules_are_imported_when_a_worker_is_made() -> None:
    app = App("memory://")
    app.autodiscover("shop_d")
    assert imported() == set()
    Worker(app)
    assert imported() == {"shop_d.tasks", "shop_d.orders.tasks"}


def test_a_plain_module_is_imported_itself() -> None:
    app = App("memory://")
    app.autodiscover("shop_d.tasks", "shop_d.orders")
    Worker(app)
    assert imported() == {"shop_d.tasks", "shop_d.orders.tasks"}


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ((), "expected the name of a package"),
        (("shopp_d",), "no package or module 'shopp_d'"),
        (("shop_d.order",), "no package or module 'shop_d.order'"),
        (("shopp_d.orders",), "no package or module 'shopp_d.orders'"),
        (("shop d",), "expected the dotted name"),
        ((".tasks",), "expected the dotted name"),
    ],
)
def test_a_mistyped_name_is_refused_at_once(names: tuple[str, ...], said: str) -> None:
    with pytest.raises(BadOption, match=said):
        App("memory://").autodiscover(*names)


def test_a_package_without_such_a_module_is_refused_by_each_worker() -> None:
    app = App("memory://")
    app.autodiscover("shop_d.empty")
    for _ in range(2):
        with pytest.raises(
            BadOption, match=r"package 'shop_d.empty' and the packages in it have no module called 'tasks'"
        ):
            Worker(app)
    with pytest.raises(BadOption, match="expected the name of a module in the package"):
        app.autodiscover("shop_d", module="a.b")


def test_an_error_of_a_module_reaches_the_caller_each_time() -> None:
    app = App("memory://")
    app.autodiscover("shop_d.wrong", module="jobs")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            Worker(app)
