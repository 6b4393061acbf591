"""`treadle init` makes projects that run: their tests, their types, and the commands that their README names."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.waiting import until_blocking
from treadle.cli.root import run

BIN = Path(sys.executable).parent
TEMPLATES = ["plain", "fastapi", "django"]
PLAIN = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # the plugins of this suite take 3 s of CPU to load
SERVES = (
    "treadle worker",
    "treadle dashboard",
    "uvicorn",
    "python manage.py runserver",
    "python manage.py treadle worker",
)  # commands that run until a signal

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]  # a loaded machine takes minutes for what takes 10 s of CPU


@pytest.fixture
def made(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a new project of the template that the test asks for."""
    monkeypatch.chdir(tmp_path)
    assert run(["init", "my-shop", "--template", request.param]) == 0
    return tmp_path / "my-shop"


def environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TREADLE_", "PYTEST_"))}
    path = f"{BIN}{os.pathsep}{kept['PATH']}"
    return (
        kept | {"PATH": path, "PYTHONPATH": str(folder), "PYTHONUNBUFFERED": "1", "DISPLAY": "", "BROWSER": ""} | PLAIN
    )


def call(folder: Path, *words: str) -> str:
    found = subprocess.run(
        words, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=100, check=False
    )
    assert found.returncode == 0, f"{shlex.join(words)}:\n{found.stdout}\n{found.stderr}"
    return found.stdout


@pytest.mark.parametrize("template", TEMPLATES)
def test_its_own_tests_pass(template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["init", "shop2", "--template", template]) == 0
    if template == "django":
        call(tmp_path / "shop2", "python", "manage.py", "test")
        call(tmp_path / "shop2", "python", "manage.py", "makemigrations", "--check", "--dry-run")
    else:
        assert re.search(r"[1-9] passed", call(tmp_path / "shop2", "pytest", "-q", "-W", "ignore"))


def test_style_and_types_are_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the settings of the projects demand: those of ruff, and mypy --strict, in one run for all of them."""
    monkeypatch.chdir(tmp_path)
    for template in TEMPLATES:
        assert run(["init", f"shop-{template}", "--template", template]) == 0
        assert "strict = true" in (tmp_path / f"shop-{template}" / "pyproject.toml").read_text()
    call(tmp_path, "ruff", "check", "--no-cache", ".")
    call(tmp_path, "ruff", "format", "--no-cache", "--check", ".")
    monkeypatch.setenv("MYPYPATH", os.pathsep.join(f"shop-{template}" for template in TEMPLATES))
    settings = f"--config-file={tmp_path / 'shop-django' / 'pyproject.toml'}"  # strict, with one word about Django
    cache = f"--cache-dir={Path(__file__).parents[2] / '.mypy_cache' / 'init'}"
    call(tmp_path, "mypy", settings, "--explicit-package-bases", cache, ".")


@pytest.mark.parametrize("template", TEMPLATES)
def test_pyright_accepts_it_in_strict_mode(template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["init", "shop", "--template", template]) == 0
    assert 'typeCheckingMode = "strict"' in (tmp_path / "shop" / "pyproject.toml").read_text()
    call(tmp_path / "shop", "basedpyright", "--pythonpath", sys.executable, ".")


@pytest.mark.skipif(sys.platform == "win32", reason="stops what serves by SIGTERM")
@pytest.mark.parametrize("made", TEMPLATES, indirect=True)
def test_the_commands_of_its_readme_work(made: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    readme = (made / "README.md").read_text().replace("8000", str(port))
    commands = re.findall(r"^    (\S.*)$", readme, re.MULTILINE)
    commands = commands[1:] if commands[0].startswith("pip install PATH ") else commands
    assert commands[0] == "pip install -e '.[dev]'"
    assert commands[1] in ("pytest", "python manage.py test")
    for command in commands[2:]:
        if "migrate" in command:  # before anything is served
            call(made, *shlex.split(command))
    with serving(made, [each for each in commands if each.startswith(SERVES)]):
        for command in commands[2:]:
            if command.startswith("curl -X POST "):
                url = command.split()[-1]
                request = urllib.request.Request(url, method="POST")
                assert until_blocking(lambda request=request: _sent(request), "an answer of the web application", 120)
            elif not command.startswith(SERVES) and "migrate" not in command:
                call(made, *shlex.split(command))
        listed = [*shlex.split(next(each for each in commands if "jobs list" in each))]
        words = "succeeded +.*(sign_up|welcome)"
        assert until_blocking(lambda: re.search(words, call(made, *listed)), "the end of the job", 120)


def _sent(request: urllib.request.Request) -> bool:
    try:
        with urllib.request.urlopen(request) as answer:
            return bool(answer.status == 202)
    except OSError:
        return False


@contextmanager
def serving(folder: Path, commands: list[str]) -> Iterator[None]:
    """Run these commands; at the end each of them stops at SIGTERM, without an error."""
    log = folder.parent / "log"
    with log.open("wb") as out:
        running = [
            subprocess.Popen(shlex.split(each), cwd=folder, env=environment(folder), stdout=out, stderr=out)
            for each in commands
        ]
    try:
        yield
        codes = [each.poll() for each in running]
        assert codes == [None] * len(commands), f"{commands} ended with {codes}:\n{log.read_text()}"
    finally:
        for each in running:
            each.send_signal(signal.SIGTERM)
        for each in running:
            try:
                each.wait(40)
            finally:
                each.kill()
    assert all(each.returncode in (0, -signal.SIGTERM) for each in running), log.read_text()


def test_each_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["init", "Shop_2"]) == 0
    out, err = capsys.readouterr()
    named = {Path(line) for line in out.splitlines()}
    assert named == {each.relative_to(tmp_path) for each in tmp_path.rglob("*") if each.is_file()}
    assert Path("Shop_2/shop_2/tasks.py") in named
    assert "treadle worker shop_2.tasks:app" in err
    assert all("{{" not in (tmp_path / each).read_text() for each in named)


ORIGINS = {
    "a checkout": ({"url": "{folder}", "dir_info": {"editable": True}}, "pip install '{path}'"),
    "a file": ({"url": "{folder}/t.whl", "archive_info": {}}, "pip install '{path}/t.whl'"),
    "a checkout that is gone": ({"url": "file:///nowhere", "dir_info": {}}, None),
    "a repository": (
        {"url": "https://example.org/t.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
        "pip install 'treadle @ git+https://example.org/t.git@abc'",
    ),
    "an index": (None, None),
}


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("origin", ORIGINS)
def test_the_first_step_installs_this_treadle_if_no_index_may_have_it(
    origin: str, template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "a folder"
    (source / "treadle-0.1.0.dist-info").mkdir(parents=True)
    (source / "t.whl").touch()
    (source / "treadle-0.1.0.dist-info" / "METADATA").write_text("Name: treadle\nVersion: 0.1.0\n")
    direct, wanted = ORIGINS[origin]
    if direct is not None:
        text = json.dumps(direct).replace("{folder}", source.as_uri())
        (source / "treadle-0.1.0.dist-info" / "direct_url.json").write_text(text)
    monkeypatch.syspath_prepend(source)
    monkeypatch.chdir(tmp_path)
    assert run(["init", "shop", "--template", template]) == 0
    own = "pip install -e '.[dev]'"
    steps = [own] if wanted is None else [wanted.replace("{path}", str(source)), own]
    shown = capsys.readouterr().err.split("cd shop\n")[1]
    assert [line.strip() for line in shown.splitlines()][: len(steps)] == steps
    readme = (tmp_path / "shop" / "README.md").read_text()
    if wanted is not None and "{path}" in wanted:  # a folder of this machine, which no reader of the project has
        steps[0] = "pip install PATH   # of a checkout or a wheel of Treadle"
    assert re.findall(r"^    (\S.*)$", readme, re.MULTILINE)[: len(steps)] == steps
    assert str(tmp_path) not in readme


def test_without_a_name_the_project_is_made_in_this_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "film-club"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "notes.txt").write_text("mine")
    assert run(["init"]) == 0
    assert (folder / "film_club" / "tasks.py").is_file()
    assert 'name = "film-club"' in (folder / "pyproject.toml").read_text()


@pytest.mark.parametrize("existing", ["pyproject.toml", "shop/tasks.py", "README.md"])
def test_nothing_is_overwritten(
    existing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "shop" / existing
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    assert run(["init", "shop"]) == 2
    out, err = capsys.readouterr()
    assert (out, f"shop/{existing} exists, so nothing was written" in err) == ("", True)
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == [file]
    assert file.read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "expected a letter"),
        ("2shops", "expected a letter"),
        ("../shop", "expected a letter"),
        ("a" * 41, "at most 40"),
        ("class", "choose another name"),
        ("json", "choose another name"),
        ("tests", "choose another name"),
        ("treadle", "choose another name"),
        ("msgspec", "is installed"),
    ],
)
def test_a_name_that_cannot_be_imported_is_refused(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["init", name]) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="needs a folder that it may not write to")
def test_a_folder_without_permission_is_an_error_of_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o500)
    assert run(["init", "shop"]) == 1
    tmp_path.chmod(0o700)
    assert "cannot write shop" in capsys.readouterr().err
