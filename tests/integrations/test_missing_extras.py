"""Without the package of an extra, one sentence names the package, the command and the extra."""

from __future__ import annotations

import subprocess
import sys

import pytest

from treadle_testkit.shows import shows


@shows("a missing extra is named, with the command that installs its package")
@pytest.mark.parametrize(
    ("module", "package", "command"),
    [
        ("starlette", "starlette", "pip install 'starlette>=0.45', or the extra treadle[server]"),
        ("litestar", "litestar", "pip install 'litestar'"),
        ("flask", "flask", "pip install 'flask'"),
        ("sentry", "sentry_sdk", "pip install 'sentry-sdk>=2.20', or the extra treadle[sentry]"),
        (
            "pydantic_ai",
            "pydantic_ai",
            "pip install 'pydantic-ai-slim>=2.68', or the extra treadle[pydantic-ai]",
        ),
        ("otel", "opentelemetry", "pip install 'opentelemetry-api>=1.30', or the extra treadle[otel]"),
    ],
)
def test_the_sentence(module: str, package: str, command: str) -> None:
    program = f"import sys; sys.modules[{package!r}] = None; import treadle.integrations.{module}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1]
    assert line == f"ModuleNotFoundError: treadle.integrations.{module} needs the package {package}: {command}"
