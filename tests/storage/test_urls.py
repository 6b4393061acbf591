"""URLs as people write them: the names of files, schemes of other libraries, a path in place of a URL."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures import a_url
from treadle import App
from treadle.core import file_urls
from treadle.core.config import plain_url, storage_url
from treadle.core.redaction import shown
from treadle.errors import BadUrl
from treadle.storage import connect
from treadle_testkit.shows import shows

NAMES = ["C#", "C#2", "what?", "100%25", "50%41 ünïcode 漢"]
TASKS = """
import sys
from treadle import App
app = App(*sys.argv[1:])
print(app._core.storage.path)
app.sync.enqueue(app.stub("shop.send").job())
"""


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1))
def test_each_path_has_one_url(path: str) -> None:
    read = file_urls.read(file_urls.url_of(path))
    assert read is not None
    assert (read.path, read.options) == (path, {})


def test_a_name_that_is_not_utf_8_has_a_url() -> None:
    paths = [os.fsdecode(name) for name in (b"caf\xe9.db", b"caf\xe8.db")]
    urls = list(map(file_urls.url_of, paths))
    assert urls == ["sqlite:///caf%E9.db", "sqlite:///caf%E8.db"]
    assert [file_urls.read(url) for url in urls] == [(path, {}) for path in paths]


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///app#1.db", "app#1.db"),
        ("sqlite:///app%231.db", "app#1.db"),
        ("sqlite:////srv/a%20b.db?synchronous=normal", "/srv/a b.db"),
        ("sqlite:///jobs.db\n", "jobs.db"),
        ("SQLITE:///jobs.db", "jobs.db"),
        ("sqlite+aiosqlite:///jobs.db", "jobs.db"),
    ],
)
def test_the_path_in_a_url(url: str, path: str) -> None:
    read = file_urls.read(plain_url(url))
    assert read is not None
    assert read.path == path
    assert connect(url).path == os.path.realpath(path)  # type: ignore[attr-defined]


@pytest.mark.slow
@shows("in a folder of any name, App(), a URL, TREADLE_URL and the command line mean the same file, in each process")
def test_every_name_is_one_file_for_all_processes(tmp_path: Path) -> None:
    for name in NAMES:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "shop.py").write_text(TASKS)
        file = folder / "treadle.db"
        url = file_urls.url_of(file)
        clean = {key: value for key, value in os.environ.items() if key != "TREADLE_URL"}
        jobs = [sys.executable, "-m", "treadle", "jobs", "list", "--json"]
        for command, environment in (
            ([sys.executable, "shop.py"], clean),
            ([sys.executable, "shop.py", url], clean),
            ([sys.executable, "shop.py"], {**clean, "TREADLE_URL": url}),
        ):
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
            assert (done.stderr, done.stdout) == ("", f"{os.path.realpath(file)}\n"), name
        for command in (jobs, [*jobs, "--url", url]):
            done = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True, check=False)
            assert done.stdout.count('"shop.send"') == 3, (name, done.stderr)
        assert {each.name for each in folder.iterdir()} >= {"shop.py", "treadle.db"}
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(NAMES)


def test_the_default_is_next_to_the_program(tmp_path: Path) -> None:
    folder = tmp_path / "C#?%41"
    folder.mkdir()
    (folder / "shop.py").touch()
    read = file_urls.read(storage_url(None, str(folder / "shop.py"), {}))
    assert read is not None
    assert read.path == str(folder / "treadle.db")


def test_a_question_mark_in_a_name_is_explained() -> None:
    with pytest.raises(BadUrl, match=r"a `[?]` that belongs to the file name is written %3F"):
        connect("sqlite:///what?.db")
    with pytest.raises(BadUrl, match="null character"):
        connect("sqlite:///a%00.db")


@pytest.mark.parametrize("url", ["jobs.db", "data/jobs.db", "/srv/my jobs.sqlite3"])
def test_a_path_in_place_of_a_url_is_answered_with_its_url(url: str) -> None:
    with pytest.raises(BadUrl) as refused:
        App(url)
    assert f"the SQLite file of this name is 'sqlite:///{url}'" in str(refused.value)


def test_no_such_answer_has_a_possible_password() -> None:
    with pytest.raises(BadUrl) as refused:
        App("user:secret@host/jobs.db")
    assert "secret" not in str(refused.value)


def test_a_fragment_of_a_file_is_shown() -> None:
    assert shown("sqlite:////srv/app#1.db?shared=true") == "sqlite:////srv/app#1.db?shared=true"


@shows("URLs of SQLAlchemy and of Valkey name the storage, as Treadle's own do")
@pytest.mark.parametrize("scheme", ["postgresql+asyncpg", "postgresql+psycopg", "postgresql+psycopg2", "valkey"])
async def test_schemes_of_other_libraries(scheme: str, tmp_path: Path) -> None:
    async def works(url: str) -> None:
        async with App(scheme + url[url.index("://") :]) as app:
            job = await app.stub("shop.send").enqueue()
            assert (await app.jobs.get(job.id)) is not None
            assert app.url is not None
            assert app.url.partition(":")[0] in ("postgresql", "redis")

    with a_url("redis" if scheme == "valkey" else "postgres", tmp_path) as url:
        await works(url)


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("valkeys://u:p@host:6379/0", "rediss://u:p@host:6379/0"),
        ("valkey+cluster://a:1,b:2", "redis+cluster://a:1,b:2"),
        ("redis+sentinel://a:1/main", "redis+sentinel://a:1/main"),
        ("postgres+asyncpg://h/d?x=+:", "postgres://h/d?x=+:"),
        ("http://h:1", "http://h:1"),
        ("jobs.db", "jobs.db"),
    ],
)
def test_the_scheme_that_we_use(url: str, plain: str) -> None:
    assert plain_url(url) == plain
