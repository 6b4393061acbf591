"""The web applications of examples/ and their Celery twins: their own tests, and a visit with a worker on a server."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tokenize
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.servers import valkey
from tests.waiting import until_blocking

EXAMPLES = Path(__file__).parents[2] / "examples"
BIN = Path(sys.executable).parent
LAYOUT = tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER
APPLICATIONS = ["fastapi_shop", "flask_site"]
WEB = {"fastapi_shop": "uvicorn web:web --port {port}", "flask_site": "flask --app web run --port {port}"}
WORKER = {
    "": "treadle worker jobs:app --poll 0.1",
    "celery_twin": "celery -A jobs worker --pool solo -Q celery,payments,mail,reports --without-mingle",
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(sys.platform == "win32", reason="stops its processes by SIGTERM"),
]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TREADLE_", "PYTEST_"))}
    return kept | {
        "PATH": f"{BIN}{os.pathsep}{kept['PATH']}",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # the plugins of this suite take 3 s of CPU to load
        "SHOP_DB": str(tmp_path / "data.db"),
        "SITE_DB": str(tmp_path / "data.db"),
        "REDIS_URL": f"{valkey.url().rpartition('/')[0]}/9",
    }


@pytest.mark.parametrize("twin", ["", "celery_twin"])
@pytest.mark.parametrize("name", APPLICATIONS)
def test_its_own_tests_pass(name: str, twin: str, environment: dict[str, str]) -> None:
    words = ["pytest", "-q", "-W", "ignore", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", "."]
    folder = EXAMPLES / name / twin
    [file] = folder.glob("test_*.py")
    made = subprocess.run(
        [*words, file.name], cwd=folder, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert made.returncode == 0, made.stdout + made.stderr
    assert re.search(r"[1-9] passed", made.stdout)


@pytest.mark.parametrize("twin", ["", "celery_twin"])
def test_the_shop_with_a_worker(twin: str, environment: dict[str, str], tmp_path: Path) -> None:
    with served("fastapi_shop", twin, environment, tmp_path) as url:
        order = call(f"{url}/orders", json.dumps({"item": "boat", "cents": 500}).encode(), type="application/json")
        place = f"{url}/orders/{order['order']}"
        assert until_blocking(lambda: call(place) == {"state": "shipped", "progress": 1}, "the end of the order", 120)


@pytest.mark.parametrize("twin", ["", "celery_twin"])
def test_the_site_with_a_worker(twin: str, environment: dict[str, str], tmp_path: Path) -> None:
    with served("flask_site", twin, environment, tmp_path) as url:
        assert "user" in call(f"{url}/signup", form(address="ada@example.org"))
        place = f"{url}/reports/{call(f'{url}/reports', form(rows=20))['report']}"
        done = {"state": "succeeded", "progress": 1, "result": "20 rows"}
        assert until_blocking(lambda: call(place) == done, "the report", 120)
        if not twin:
            long = f"{url}/reports/{call(f'{url}/reports', form(rows=10**9))['report']}"
            assert until_blocking(lambda: (call(long)["progress"] or 0) > 0, "progress of the report", 120)
            call(long, method="DELETE")
            assert call(long)["state"] == "cancelled"


@pytest.mark.parametrize("name", APPLICATIONS)
def test_an_example_is_at_most_as_long_as_its_twin(name: str) -> None:
    ours, theirs = (sum(map(code_lines, (EXAMPLES / name / twin).glob("*.py"))) for twin in ("", "celery_twin"))
    assert 50 < ours <= theirs


def code_lines(file: Path) -> int:
    """The lines of a module without comments, docstrings and empty lines."""
    text, lines = file.read_text(), set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            lines |= {*range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        if isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None:
            lines -= {*range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)}
    return len(lines)


def form(**fields: object) -> bytes:
    return urlencode(fields).encode()


def call(
    url: str, body: bytes | None = None, type: str = "application/x-www-form-urlencoded", method: str | None = None
) -> Any:
    request = urllib.request.Request(url, body, {"Content-Type": type}, method=method)
    with urllib.request.urlopen(request) as answer:
        text = answer.read()
    return json.loads(text) if text else None


@contextmanager
def served(name: str, twin: str, environment: dict[str, str], folder: Path) -> Iterator[str]:
    """The application on a server and a worker, each a process -> its URL. Their log must have no traceback."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = EXAMPLES / name / twin
    environment = environment | {"PYTHONPATH": str(place)} if twin else environment  # tasks of Celery import late
    if not twin:  # as the README says: the site may get its first request before the worker starts
        migrate = [str(BIN / "treadle"), "storage", "migrate", "--app", "jobs:app"]
        subprocess.run(migrate, cwd=place, env=environment, capture_output=True, check=True, timeout=60)
    url, log = f"http://127.0.0.1:{port}", folder / "log"
    commands = [WEB[name].format(port=port), WORKER[twin]]
    with log.open("wb") as out:
        running = [
            subprocess.Popen(shlex.split(each), cwd=place, env=environment, stdout=out, stderr=out) for each in commands
        ]

    def answers() -> bool:
        codes = [each.poll() for each in running]
        assert codes == [None, None], f"{commands} ended with {codes}:\n{log.read_text()}"
        try:
            call(url)
        except urllib.error.HTTPError as error:
            error.close()
        except OSError:
            return False
        return True

    try:
        until_blocking(answers, "an answer of the web server", 120)
        yield url
    except BaseException as error:
        error.add_note(log.read_text())
        raise
    finally:
        for each in running:
            each.terminate()  # a run in the background of a shell ignores SIGINT, and so do its children
        try:
            for each in running:
                each.wait(40)
        finally:
            for each in running:
                each.kill()
                each.wait()
    codes = [each.returncode for each in running]
    assert all(code in (0, -signal.SIGTERM) for code in codes), f"{commands} ended with {codes}:\n{log.read_text()}"
    assert "Traceback" not in log.read_text(), log.read_text()
