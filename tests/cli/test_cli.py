"""The command line: parsing, messages, exit codes, JSON. It runs in this process, in an empty folder."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.cli.tools import Command
from treadle import App, Limit, current
from treadle.cli.root import COMMANDS, run
from treadle.core.model import Presence
from treadle.server.doctor.sqlite import loose_files
from treadle.testing import drain
from treadle_testkit.shows import shows

TASKS = """
from treadle import App, Retry

app = App()


@app.task
async def add(a: int, b: int = 1) -> int:
    return a + b


@app.task(queue="mail")
async def send(to: str) -> None: ...
"""

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TREADLE_URL", raising=False)
    monkeypatch.delenv("TREADLE_DEBUG", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if not name.startswith("treadle"):
            del sys.modules[name]


@pytest.fixture
def cli(here: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command. Return its exit code, stdout and stderr."""

    def call(*args: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(args)
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def tasks(here: Path) -> str:
    (here / "jobs.py").write_text(TASKS)
    return "jobs:app"


def found(cli: Run, *args: str) -> list[dict[str, Any]]:
    code, out, err = cli(*args, "--json")
    assert code == 0, err
    rows: list[dict[str, Any]] = json.loads(out)
    return rows


# --- the list of commands


def test_help_lists_every_command_without_importing_one(here: Path) -> None:
    script = "import sys; from treadle.cli import main; main(['--help']); "
    script += "print([n for n in sys.modules if n.startswith('treadle.cli.')])"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=here).stdout
    text, _, imported = out.rpartition("\n[")
    assert all(f"  {name} " in text for name in COMMANDS)
    assert set(imported.strip("[]\n").replace("'", "").split(", ")) == {
        f"treadle.cli.{name}" for name in ("root", "group", "output")
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(cli: Run, name: str) -> None:
    code, out, _ = cli(name, "--help")
    assert code == 0
    assert out.startswith("Usage: treadle " + name)


def test_version_is_printed(cli: Run) -> None:
    code, out, _ = cli("--version")
    assert (code, out.split()[0]) == (0, "treadle")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["jbos"], "did you mean 'jobs'"),
        (["jobs", "lst"], "lst"),
        (["jobs", "list", "--state", "gone"], "found 'gone'"),
        (["jobs", "list", "--limit", "x"], "treadle jobs list --help"),
        (["jobs", "cancel"], "at least one filter"),
        (["jobs", "cancel", "an-id", "--queue", "q"], "at least one filter"),
        (
            ["jobs", "list", "--before", "soon"],
            "or a duration before now such as 5m, 2h or 1d; found 'soon'",
        ),
        (["jobs", "list", "--url", "sqlite:///a.db", "--app", "a:b"], "not both"),
        (["jobs", "list", "--url", "bogus://x"], "bogus://x"),
        (["enqueue", "t", "{bad"], "begins like JSON"),
        (["enqueue", "t", "--kw", "noequals"], "name=value"),
        (["enqueue", "t", "--delay", "soon"], "5m"),
        (["enqueue", "t", "--priority", "99999"], "priority"),
        (["limits", "set", "smtp"], "--slots, --rate or --max-waiting"),
        (["worker", "jobs:app", "--queues", "mail=x"], "mail=3,bulk"),
    ],
)
def test_a_usage_error_is_one_line_and_exit_code_2(cli: Run, typed: list[str], said: str, here: Path) -> None:
    code, out, err = cli(*typed)
    assert (code, out) == (2, "")
    assert err.startswith("treadle: ")
    assert said in err
    assert err.count("\n") == 1
    assert not list(here.iterdir())


# --- how it finds the storage


@pytest.mark.parametrize(
    "typed",
    [
        ["jobs", "list"],
        ["jobs", "show", "x"],
        ["queues"],
        ["limits"],
        ["queues", "workers"],
        ["queues", "stats"],
        ["queues", "pause", "q"],
    ],
)
def test_reading_commands_create_no_database(cli: Run, here: Path, typed: list[str]) -> None:
    code, out, err = cli(*typed)
    assert (code, out) == (3, "")
    assert str(here / "treadle.db") in err
    assert "--url" in err
    assert not list(here.iterdir())


def test_another_file_is_not_a_database(cli: Run, here: Path) -> None:
    (here / "text.db").write_text("hello, this is a text")
    code, _, err = cli("jobs", "list", "--url", "sqlite:///text.db")
    assert code == 3
    assert "not a SQLite database" in err


def test_the_default_is_the_file_of_an_app_in_this_directory(cli: Run, tasks: str, here: Path) -> None:
    _, sent, _ = cli("enqueue", "--app", tasks, "add", "1")
    assert (here / "treadle.db").is_file()
    assert [row["id"] for row in found(cli, "jobs", "list")] == [sent.strip()]
    assert [row["id"] for row in found(cli, "jobs", "list", "--app", tasks)] == [sent.strip()]


def test_an_id_that_was_stored_before(cli: Run, tasks: str) -> None:
    """The same job again is a note on stderr; a different job with that id is an error of one line."""
    ask = ("enqueue", "--app", tasks, "--id", "order-1")
    assert cli(*ask, "add", "1")[:2] == (0, "order-1\n")
    assert cli(*ask, "add", "1") == (0, "order-1\n", "order-1 was already stored; this call stored nothing\n")
    code, out, err = cli(*ask, "send", "ada")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "id 'order-1' is taken by a job of" in err


def test_the_environment_names_the_storage(cli: Run, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_URL", f"sqlite:///{here}/other.db")
    assert cli("enqueue", "t")[0] == 0
    assert (here / "other.db").is_file()
    assert len(found(cli, "jobs", "list")) == 1


def test_a_password_is_not_shown() -> None:
    from treadle.core.redaction import shown

    assert shown("postgresql://ann:secret@host/db") == "postgresql://ann:***@host/db"
    assert shown("sqlite:///file.db") == "sqlite:///file.db"


def test_an_error_of_ours_shows_its_traceback_with_the_option_only(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_DEBUG", "1")
    with pytest.raises(Exception, match="bogus"):
        cli("jobs", "list", "--url", "bogus://x")


# --- the app


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("nowhere:app", "no module 'nowhere'"),
        ("jobs:other", "try jobs:app"),
        ("jobs:add", "not a treadle.App"),
        ("nowhere.py:app", "no file 'nowhere.py'"),
        (":app", "module:app"),
        ("jobs.app", "did you mean 'jobs:app'?"),
        ("{here}.jobs:app", "this directory is a package"),
    ],
)
def test_an_app_that_is_not_there(cli: Run, tasks: str, here: Path, named: str, said: str) -> None:
    if named.startswith("{here}"):
        (here / "__init__.py").touch()
        named = named.format(here=here.name)
    code, _, err = cli("enqueue", "--app", named, "add", "1")
    assert code == 2
    assert said in err


def test_an_import_error_of_the_users_shows_their_traceback(cli: Run, here: Path) -> None:
    (here / "broken.py").write_text("import not_there_at_all\n")
    code, _, err = cli("enqueue", "--app", "broken:app", "add", "1")
    assert code == 1
    assert 'broken.py", line 1' in err
    assert "importlib" not in err
    assert "find.py" not in err


@pytest.mark.parametrize("named", ["jobs:app", "jobs", "jobs.py:app", "jobs.py"])
def test_an_app_may_be_named_by_module_or_file(cli: Run, tasks: str, named: str) -> None:
    code, _, err = cli("enqueue", "--app", named, "jobs.add", "1")
    assert code == 0, err
    assert found(cli, "jobs", "list")[0]["task"] == "jobs.add"


def test_a_file_within_a_package_is_imported_as_its_module(cli: Run, here: Path) -> None:
    package = here / "shop" / "back"
    package.mkdir(parents=True)
    (here / "shop" / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "work.py").write_text(TASKS)
    assert cli("enqueue", "--app", "shop/back/work.py:app", "add", "1", "--id", "one")[0] == 0
    [row] = found(cli, "jobs", "list", "--url", f"sqlite:///{package}/treadle.db")
    assert row["task"] == "shop.back.work.add"


# --- enqueue


def test_arguments_are_json_or_text(cli: Run) -> None:
    cli("enqueue", "t", "1", "two", '"3"', "[4, null]", "--kw", 'five={"a": 1.5}', "--kw", "six=b=c", "--", "-7")
    [row] = found(cli, "jobs", "list")
    assert row["args"] == [1, "two", "3", [4, None], -7]
    assert row["kwargs"] == {"five": {"a": 1.5}, "six": "b=c"}


def test_options_reach_the_row(cli: Run) -> None:
    code, out, err = cli(
        "enqueue",
        "t",
        "--id",
        "one",
        "--delay",
        "2h",
        "--priority",
        "7",
        "--queue",
        "q",
        "--key",
        "k",
        "--label",
        "user=1",
        "--header",
        "trace=x",
        "--limit",
        "smtp",
        "--limit",
        "tokens:ann=2000",
        "--lane",
        "l",
        "--expires",
        "3h",
    )
    assert (code, out) == (0, "one\n"), err
    code, out, _ = cli("jobs", "show", "one", "--json")
    row = json.loads(out)
    assert (row["priority"], row["queue"], row["key"], row["lane"]) == (7, "q", "t k", "l")
    assert (row["labels"], row["headers"], row["limits"]) == (["user=1"], {"trace": "x"}, ["smtp", "tokens:ann"])
    assert row["due_at"] > row["created_at"]
    assert row["deadline_at"] > row["due_at"]


def test_with_the_app_task_and_arguments_are_checked(cli: Run, tasks: str) -> None:
    code, _, err = cli("enqueue", "--app", tasks, "ad", "1")
    assert code == 2
    assert "jobs.add" in err
    code, _, err = cli("enqueue", "--app", tasks, "add", "one")
    assert code == 2
    assert "'a'" in err
    assert cli("enqueue", "--app", tasks, "send", "ann")[0] == 0
    assert [row["queue"] for row in found(cli, "jobs", "list")] == ["mail"]


def test_a_missing_result_exits_with_1(cli: Run) -> None:
    code, out, err = cli("enqueue", "t", "--wait", "0.05")
    assert (code, out) == (1, "")
    assert "treadle jobs explain" in err


# --- reading and acting


def test_lists_are_tables_for_people(cli: Run) -> None:
    for number in range(3):
        cli("enqueue", "t", str(number), "--queue", "q", "--id", f"job-{number}")
    code, out, err = cli("jobs", "list", "--limit", "2")
    lines = out.splitlines()
    assert code == 0
    assert lines[0].split() == ["ID", "STATE", "TASK", "QUEUE", "ATTEMPTS", "CREATED", "WHAT"]
    assert {line.index("ready") for line in lines[1:]} == {lines[0].index("STATE")}
    assert "\x1b" not in out
    assert "2 of 3 jobs" in err
    cursor = err.split("--cursor ")[1].strip()
    assert "job-0" in cli("jobs", "list", "--limit", "2", "--cursor", cursor)[1]
    told = "warning: nothing uses the queue 'nobody' yet\nno jobs\n"
    assert cli("jobs", "list", "--queue", "nobody") == (0, "", told)
    assert found(cli, "jobs", "list", "--queue", "nobody") == []


@pytest.mark.parametrize("name", [None, "pay"])
def test_show_has_the_end_of_a_time_limit(cli: Run, name: str | None) -> None:
    async def store() -> None:
        app = App("sqlite:///treadle.db")

        @app.task
        async def limited() -> None:
            async with current().timeout(3_600, name=name):
                await current().sleep(60)

        async with app:
            await limited.options(id="limited").enqueue()
            await drain(app)

    asyncio.run(store())
    shown = cli("jobs", "show", "limited")[1]
    assert shown.count("lasts until") == shown.count("sleeps until") == 1


def test_show_and_explain_print_the_job(cli: Run) -> None:
    cli("enqueue", "t", "1", "--kw", "b=2", "--id", "one", "--delay", "1h")
    code, out, _ = cli("jobs", "show", "one")
    assert code == 0
    assert "t(1, b=2)" in out
    code, out, _ = cli("jobs", "explain", "one")
    assert (code, out.count("\n")) == (0, 1)
    code, out, err = cli("jobs", "show", "nobody")
    assert (code, out) == (1, "")
    assert "no job 'nobody'" in err


@shows("`treadle jobs` cancels, retries and starts jobs by id and reports unknown ids")
def test_acts_on_ids_report_unknown_ids(cli: Run) -> None:
    cli("enqueue", "t", "--id", "one")
    cli("enqueue", "t", "--id", "two", "--delay", "1h")
    code, out, err = cli("jobs", "cancel", "one", "nobody")
    assert (code, out) == (1, "cancelled 1 job\n")
    assert "nobody" in err
    assert cli("jobs", "run-now", "two")[:2] == (0, "queued 1 job\n")
    code, _, err = cli("jobs", "delete", "two")
    assert code == 1
    assert "cancel it first" in err
    assert cli("jobs", "retry", "one")[:2] == (0, "reopened 1 job\n")
    assert {row["state"] for row in found(cli, "jobs", "list")} == {"ready"}


def test_a_job_receives_a_signal_once(cli: Run) -> None:
    cli("enqueue", "t", "--id", "one")
    assert cli("jobs", "signal", "one", "approved", '{"by": "Ada"}') == (0, "", "one received the signal 'approved'\n")
    code, _, err = cli("jobs", "signal", "one", "approved", "again")
    assert code == 1
    assert "the first value stays" in err
    code, _, err = cli("jobs", "signal", "nobody", "approved")
    assert code == 1
    assert "no job 'nobody'" in err


def test_an_act_on_a_filter_needs_a_confirmation(cli: Run) -> None:
    async def fill() -> None:
        async with App("sqlite:///treadle.db") as app:
            await app.enqueue(app.stub("t").options(queue="q").job(number) for number in range(120))
            await app.stub("t").enqueue()

    asyncio.run(fill())
    code, out, err = cli("jobs", "cancel", "--queue", "q")
    assert (code, out) == (1, "")
    assert "120 jobs" in err
    assert "--yes" in err
    assert cli("jobs", "cancel", "--queue", "q", "--yes")[:2] == (0, "cancelled 120 jobs\n")
    assert cli("jobs", "cancel", "--queue", "q", "--yes")[0] == 0
    assert len(found(cli, "jobs", "list", "--state", "ready,waiting", "--state", "running")) == 1


def test_queues_pause_and_resume(cli: Run) -> None:
    cli("enqueue", "t", "--queue", "q")
    assert cli("queues", "pause", "q")[0] == 0
    [row] = found(cli, "queues", "list")
    assert (row["queue"], row["queued"], row["paused"]) == ("q", 1, True)
    assert "paused" in cli("queues")[1]
    assert cli("queues", "resume", "q")[0] == 0
    assert found(cli, "queues", "list")[0]["paused"] is False


def test_limits_are_set_and_removed(cli: Run) -> None:
    cli("storage", "migrate")
    assert cli("limits", "set", "smtp", "--slots", "3", "--rate", "10", "--per", "1m")[0] == 0
    [row] = found(cli, "limits", "list")
    assert (row["limit"], row["slots"], row["rate"], row["per"]) == ("smtp", 3, 10, 60.0)
    assert "10 per 60 s" in cli("limits")[1]
    assert cli("limits", "remove", "smtp")[0] == 0
    assert found(cli, "limits", "list") == []
    assert cli("limits", "remove", "smtp")[0] == 1


def test_removing_the_rule_of_a_paused_limit_prints_that_the_pause_stays(cli: Run) -> None:
    cli("storage", "migrate")
    cli("limits", "set", "api", "--slots", "3")
    cli("limits", "pause", "api")
    code, _, said = cli("limits", "set", "api", "--slots", "5")
    assert (code, "still paused" in said) == (0, True)
    assert "paused, then 5 slots" in cli("limits")[1]
    code, _, said = cli("limits", "remove", "api")
    assert code == 0
    assert "the limit is still paused: `treadle limits resume api` resumes it" in said
    [row] = found(cli, "limits", "list")
    assert (row["slots"], row["pauses"], row["slots_when_resumed"]) == (0, [{"why": "paused", "until": None}], None)
    assert cli("limits", "resume", "api")[0] == 0
    assert found(cli, "limits", "list") == []


def test_a_signal_without_a_waiting_job_is_stored_with_a_warning(cli: Run) -> None:
    async def fill() -> None:
        app = App("sqlite:///treadle.db")

        @app.task(name="rel")
        async def rel() -> None:
            await current().wait_for("approved")

        async with app:
            await rel.options(id="rel-1").enqueue()
            await drain(app)

    asyncio.run(fill())
    code, _, said = cli("jobs", "signal", "rel-1", "aproved", "ada")
    assert (code, "waits for the signal 'approved', not for 'aproved'; did you mean" in said) == (0, True)
    assert "warning" not in cli("jobs", "signal", "rel-1", "approved", "ada")[2]


def test_messages_are_sent_and_published_values_are_shown(cli: Run) -> None:
    async def run() -> None:
        app = App("sqlite:///treadle.db")

        @app.task(name="count")
        async def count() -> list[int]:
            here, numbers = current(), list[int]()
            while number := await here.receive("add"):
                numbers.append(number)
                await here.publish("last", number)
            return numbers

        async with app:
            if await app.storage.get(["c-1"]) == [None]:
                await count.options(id="c-1").enqueue()
            await drain(app)

    asyncio.run(run())
    assert "did you mean 'add'?" in cli("jobs", "send", "c-1", "addd", "7")[2]
    assert cli("jobs", "send", "c-1", "add", "7") == (0, "", "c-1 has the message in its mailbox 'add'\n")
    code, _, err = cli("jobs", "send", "c-1", "add", "8", "--key", "k", "--answer", "0")
    assert (code, "has not answered 'add' in 0 s" in err) == (1, True)
    asyncio.run(run())
    assert "last=8" in cli("jobs", "show", "c-1")[1]
    assert json.loads(cli("jobs", "show", "c-1", "--json")[1])["published"] == {"last": 8}


def test_a_mistyped_name_is_paused_with_a_warning(cli: Run) -> None:
    cli("enqueue", "t", "--queue", "fetch")
    cli("limits", "set", "site", "--slots", "3")
    code, _, said = cli("queues", "pause", "fecth")
    assert (code, "nothing uses the queue 'fecth' yet; did you mean 'fetch'?" in said) == (0, True)
    code, _, said = cli("limits", "pause", "stie")
    assert (code, "did you mean 'site'?" in said) == (0, True)
    assert "warning" not in cli("queues", "pause", "fetch")[2]
    assert "warning" not in cli("limits", "pause", "site:one")[2]


@pytest.mark.slow
def test_two_commands_at_once_lose_neither_change(cli: Run, here: Path) -> None:
    """An operator sets a rule while another one pauses the limit. Both calls succeed and both changes are stored."""
    cli("storage", "migrate")
    for number in range(1, 6):
        asked = [["set", "smtp", "--slots", str(number)], ["pause", "smtp"]]
        running = [subprocess.Popen([sys.executable, "-m", "treadle", "limits", *words], cwd=here) for words in asked]
        assert [each.wait(60) for each in running] == [0, 0]
        [row] = found(cli, "limits", "list")
        assert (row["slots"], row["slots_when_resumed"]) == (0, number)
        assert cli("limits", "resume", "smtp")[0] == 0
        assert found(cli, "limits", "list")[0]["slots"] == number


def test_stats_counts_jobs_without_workers(cli: Run) -> None:
    cli("enqueue", "t")
    assert found(cli, "queues", "workers") == []
    assert found(cli, "queues", "stats")[0]["ready"] == 1
    code, out, err = cli("queues", "stats")
    assert (code, out.split()[0]) == (0, "TASK")
    assert "0 workers" in err


# --- migrate and doctor


def test_migrate_prints_whether_it_created_the_schema(cli: Run, here: Path) -> None:
    code, out, err = cli("storage", "migrate")
    assert code == 0
    assert "created, with schema" in out
    assert "creating" in err
    assert "already" in cli("storage", "migrate")[1]
    assert cli("storage", "migrate", "--url", f"sqlite:///{here}/no/such/file.db")[0] == 3


def checked(cli: Run, *args: str) -> tuple[int, dict[str, str]]:
    code, out, _ = cli("doctor", "--json", *args)
    return code, {check["name"]: check["verdict"] for check in json.loads(out)}


def rows_of(file: Path) -> list[str]:
    with closing(sqlite3.connect(file)) as db:
        return list(db.iterdump())


def test_doctor_finds_a_healthy_database_healthy(cli: Run) -> None:
    cli("storage", "migrate")
    code, verdicts = checked(cli, "--full")
    assert code == 0
    assert set(verdicts.values()) <= {"ok", "warn"}
    assert verdicts["integrity"] == verdicts["file"] == verdicts["storage"] == verdicts["lost"] == "ok"


def test_doctor_needs_no_package_of_the_server(cli: Run, here: Path) -> None:
    cli("storage", "migrate", "--url", "sqlite:///jobs.db")
    (here / "sitecustomize.py").write_text("import sys\nsys.modules |= {'starlette': None, 'uvicorn': None}\n")
    with Command("doctor", "--url", "sqlite:///jobs.db", cwd=here, PYTHONPATH=str(here)) as doctor:
        assert doctor.ended() == 0, doctor.stderr
        assert "own rows" in doctor.stdout


def test_tokens_are_made_and_listed_without_the_packages_of_the_server(here: Path) -> None:
    (here / "sitecustomize.py").write_text("import sys\nsys.modules |= {'starlette': None, 'uvicorn': None}\n")
    with Command("token", "web", "--scope", "read", cwd=here, PYTHONPATH=str(here)) as made:
        assert made.ended() == 0, made.stderr
        assert made.stdout.startswith("trd_")
    with Command("token", cwd=here, PYTHONPATH=str(here)) as listed:
        assert listed.ended() == 0, listed.stderr
        assert "web" in listed.stdout


def test_doctor_fails_on_a_missing_or_foreign_file(cli: Run, here: Path) -> None:
    assert checked(cli) == (1, {"file": "fail"})
    (here / "treadle.db").write_text("hello, this is a text")
    code, verdicts = checked(cli)
    assert (code, verdicts["content"]) == (1, "fail")


def test_doctor_names_the_causes_of_waiting_jobs(cli: Run, tasks: str) -> None:
    async def fill() -> None:
        async with App("sqlite:///treadle.db") as app:
            await app.limits.set(Limit("shut", slots=0))
            await app.stub("nobody.knows").enqueue()
            await app.stub("t").options(queue="p").enqueue()
            await app.queues.pause("p")

    asyncio.run(fill())
    code, verdicts = checked(cli, "--app", tasks)
    assert code == 0
    assert verdicts["queues"] == verdicts["paused"] == verdicts["tasks"] == "warn"
    code, out, _ = cli("doctor")
    assert "-> `treadle queues resume p`" in out


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_doctor_warns_of_files_that_other_users_can_read(cli: Run, here: Path) -> None:
    assert cli("storage", "migrate")[0] == 0
    assert checked(cli)[1]["privacy"] == "ok"
    (here / "treadle.db").chmod(0o664)
    [check] = [each for each in json.loads(cli("doctor", "--json")[1]) if each["name"] == "privacy"]
    assert (check["verdict"], "treadle.db (0664)" in check["text"]) == ("warn", True)
    assert [(path.name, to) for path, _, to in loose_files(here / "treadle.db")] == [("treadle.db", 0o660)]
    (here / "treadle.db").chmod(0o660)
    assert not list(loose_files(here / "treadle.db"))


@shows("`treadle doctor` counts the rows again, compares them with the kept counts, and repairs these with `--repair`")
def test_doctor_compares_the_kept_counts_with_the_rows(cli: Run, here: Path) -> None:
    cli("enqueue", "t", "1")
    assert checked(cli)[1]["counts"] == "ok"
    with closing(sqlite3.connect(here / "treadle.db", isolation_level=None)) as db:
        db.execute("INSERT INTO job_count (queue, task, kind, jobs) VALUES ('default', 't', 'q', 4)")
    assert sum(queue["queued"] for queue in json.loads(cli("queues", "--json")[1])) == 5
    code, out, _ = cli("doctor")
    assert (code, "5 queued jobs of task 't' in queue 'default', in fact 1" in out) == (0, True)
    assert "`treadle doctor --repair` corrects them" in out
    assert "corrected 1 kept count" in cli("doctor", "--repair")[1]
    assert checked(cli)[1]["counts"] == "ok"
    assert sum(queue["queued"] for queue in json.loads(cli("queues", "--json")[1])) == 1


def test_doctor_repairs_a_file_that_refuses_every_job(cli: Run, here: Path) -> None:
    """It finds bodies without a job, jobs that no call finds, and files that other users can read."""
    cli("enqueue", "t", "1")
    cli("enqueue", "t", "2")
    with closing(sqlite3.connect(here / "treadle.db", isolation_level=None)) as db:
        db.execute("UPDATE job SET id = 'x' || char(0) || 'y' WHERE seq = (SELECT min(seq) FROM job)")
        db.execute("INSERT INTO body (seq, body) SELECT max(seq) + 1, x'80' FROM body")
    (here / "treadle.db").chmod(0o664)
    assert cli("enqueue", "t", "3")[0] == 1
    before = rows_of(here / "treadle.db")
    code, verdicts = checked(cli, "--full")
    assert (code, verdicts["bodies"], verdicts["names"]) == (1, "fail", "fail")
    assert rows_of(here / "treadle.db") == before  # without --repair nothing changes
    code, out, _ = cli("doctor", "--repair")
    assert (code, "removed 1 job that no call could find, 2 body rows without a job" in out) == (0, True)
    assert "changed the permissions of treadle.db from 0664 to 0660" in out
    code, verdicts = checked(cli)
    assert (code, verdicts["rows"], verdicts["privacy"]) == (0, "ok", "ok")
    assert cli("enqueue", "t", "3")[0] == 0
    assert len(json.loads(cli("jobs", "list", "--json")[1])) == 2


def test_doctor_recognises_network_file_systems(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    from treadle.server.doctor import sqlite

    monkeypatch.setattr("treadle.storage.sqlite.risks.file_system", lambda folder: "nfs4")
    [check] = [check for check in sqlite._place("sqlite:///jobs.db", here / "jobs.db") if check.name == "file system"]
    assert check.verdict == "fail"


@pytest.mark.slow
def test_a_closed_output_is_no_error(here: Path) -> None:
    subprocess.run([sys.executable, "-m", "treadle", "enqueue", "t"], cwd=here, check=True, capture_output=True)
    script = f"{sys.executable} -m treadle jobs list --json | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], cwd=here, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_schedules_are_listed_paused_and_triggered(cli: Run, here: Path) -> None:
    (here / "scheduled.py").write_text(
        "from treadle import App\n"
        "app = App('sqlite:///treadle.db')\n"
        "@app.cron('0 3 * * *', tz='Europe/Paris', name='nightly')\n"
        "@app.task(name='report')\n"
        "async def report() -> None: ...\n"
    )
    assert cli("storage", "migrate")[0] == 0
    assert "no schedules" in cli("schedules")[2]

    async def start() -> None:
        async with App("sqlite:///treadle.db") as app:
            app.cron("0 3 * * *", tz="Europe/Paris", name="nightly")(app.task(name="report")(report))
            await app.schedules.store()

    async def report() -> None: ...

    asyncio.run(start())
    code, out, _ = cli("schedules", "list", "--json")
    [found] = json.loads(out)
    assert (code, found["schedule"], found["when"], found["paused"]) == (
        0,
        "nightly",
        "0 3 * * * (Europe/Paris)",
        False,
    )
    assert "nightly" in cli("schedules")[1]
    assert cli("schedules", "pause", "nightly")[0] == 0
    assert json.loads(cli("schedules", "list", "--json")[1])[0]["paused"]
    assert cli("schedules", "resume", "nightly")[0] == 0
    code, _, err = cli("schedules", "trigger", "nightly")
    assert (code, "code makes the jobs" in err) == (2, True)
    code, out, _ = cli("schedules", "trigger", "nightly", "--app", "scheduled:app")
    assert code == 0
    assert "report" in cli("jobs", "show", out.strip())[1]
    assert cli("schedules", "delete", "nightly")[0] == 0
    code, _, err = cli("schedules", "pause", "nightly")
    assert (code, "no schedule" in err) == (1, True)


@shows("`treadle top` prints its figures as often as `--times` says")
def test_top_prints_its_figures_as_often_as_times(cli: Run, here: Path) -> None:
    assert cli("storage", "migrate")[0] == 0
    assert cli("enqueue", "send", '"a@x.org"')[0] == 0
    code, out, _ = cli("top", "--times", "2", "--every", "0.01")
    assert code == 0
    assert out.count("FIRST WAITS") == 2
    assert "default" in out
    assert "0 workers" in out


@shows("`treadle jobs list --watch` prints the list again and again")
def test_a_list_may_be_watched(cli: Run, here: Path) -> None:
    assert cli("enqueue", "send", '"a@x.org"')[0] == 0
    code, out, _ = cli("jobs", "list", "--watch", "--times", "3", "--every", "0.01", "--state", "ready")
    assert code == 0
    assert out.count("send") == 3
    code, _, error = cli("jobs", "list", "--watch", "--json")
    assert (code, "--watch prints for people" in error) == (2, True)


def test_limits_pause_and_resume(cli: Run, here: Path) -> None:
    assert cli("storage", "migrate")[0] == 0
    assert cli("limits", "set", "smtp", "--slots", "5")[0] == 0
    code, _, said = cli("limits", "pause", "smtp")
    assert (code, said) == (0, "limit 'smtp' is paused; `treadle limits resume smtp` resumes it\n")
    assert json.loads(cli("limits", "list", "--json")[1])[0]["slots"] == 0
    assert cli("limits", "resume", "smtp")[0] == 0
    assert json.loads(cli("limits", "list", "--json")[1])[0]["slots"] == 5


@shows("`treadle top` shows the queues and the used slots of each worker")
def test_top_shows_workers_and_what_they_run(cli: Run, here: Path) -> None:
    async def beat() -> None:
        async with App(f"sqlite:///{here / 'treadle.db'}") as app:
            one = Presence(worker="alpha", queues=("mail", "default"), slots=8, running=3, ttl=3600)
            await app.storage.heartbeat(one, [], 30)

    asyncio.run(beat())
    code, out, _ = cli("top", "--times", "1")
    assert code == 0
    [line] = [line for line in out.splitlines() if line.startswith("alpha")]
    assert "3/8" in line
    assert "mail, default" in line
    assert "1 worker, 3 of 8 slots taken" in out
