"""An integration whose package is not installed names the command that installs it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from treadle_testkit.shows import shows

MISSING = {
    "starlette": "starlette>=0.45",
    "litestar": "litestar>=2.25",
    "flask": "flask>=3.1",
    "sentry": "sentry-sdk>=2.20",
}
PACKAGES = {"sentry": "sentry_sdk"}


@shows("An integration without its package raises an ImportError with the command that installs it")
@pytest.mark.parametrize("name", MISSING)
def test_the_error_names_what_to_install(name: str) -> None:
    code = f"import sys; sys.modules[{PACKAGES.get(name, name)!r}] = None; import treadle.integrations.{name}"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    package = MISSING[name].partition(">")[0]
    assert f"ImportError: this integration needs {package}: pip install '{MISSING[name]}' (" in ended.stderr
