"""`treadle from celery`: what it rewrites, what it leaves, and how it treats files."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from treadle.cli.root import run
from treadle.contrib.celery import GUIDE, Finding, NotWritten, Plan, plan, write

ROOT = Path(__file__).parents[3]
HEAD = "from celery import Celery, chain, chord, group, shared_task\n\nc = Celery('shop', broker='redis://x')\n\n\n"

Make = Callable[..., Plan]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Plan the move of a package `shop` with these files; the app is `shop.base.c`."""
    monkeypatch.chdir(tmp_path)

    def made(base: str = "", **files: str) -> Plan:
        folder = tmp_path / "shop"
        folder.mkdir(exist_ok=True)
        (folder / "__init__.py").touch()
        (folder / "base.py").write_text(HEAD + base)
        for name, text in files.items():
            (folder / f"{name}.py").write_text(text)
        return plan(Path("shop"))

    return made


def text(found: Plan, name: str) -> str:
    """The new content of a file, without its first lines of imports."""
    return found.files[Path("shop") / f"{name}.py"].decode()


def reasons(found: Plan, kind: str = "left") -> str:
    return "\n".join(f"{each.code}: {each.reason}" for each in found.findings if each.kind == kind)


TASK = "@c.task\ndef send(to, subject=None):\n    return to\n\n\n"

CALLS = {
    "send.delay(1)": "send.enqueue_sync(1)",
    "send.apply_async((1, 2))": "send.enqueue_sync(1, 2)",
    "send.apply_async(args=[1], kwargs={'subject': 2})": "send.enqueue_sync(1, subject=2)",
    "send.apply_async(args, kwargs)": "send.enqueue_sync(*args, **kwargs)",
    "send.apply_async((1,), countdown=5, queue='q', task_id='x')": (
        "send.options(delay=5, queue='q', id='x').enqueue_sync(1)"
    ),
    "send.apply_async((1,), priority=3)": "send.options(priority=-3).enqueue_sync(1)",
    "send.delay(1).get(timeout=3)": "send.enqueue_sync(1).result_sync(timeout=3)",
    "x = send.delay(1).id": "x = send.enqueue_sync(1).id",
    "r = send.delay(1)\n    print(r.id, r.get())": "r = send.enqueue_sync(1)\n    print(r.id, r.result_sync())",
    "transaction.on_commit(lambda: send.delay(1))": "transaction.on_commit(lambda: send.enqueue_sync(1))",
    "send.AsyncResult(i).get(3)": "app.sync.jobs.handle(i).result_sync(3)",
    "send.s(1).delay()": "app.sync.enqueue(send.job(1))",
    "chain(send.s(1), send.s(2), send.si(3))()": (
        "chain(send.job(1), send.late(2), send.options(pass_result=False).job(3)).enqueue_sync()"
    ),
    "(send.s(1) | send.s()).delay()": "treadle_chain(send.job(1), send.late()).enqueue_sync()",
    "chain(send.s(1), send.s().set(countdown=3))()": (
        "chain(send.job(1), send.options(delay=3).late()).enqueue_sync()"
    ),
    "group(send.s(i) for i in x)()": "app.sync.enqueue(send.job(i) for i in x)",
    "r = group([send.s(1), send.s(2)])()\n    return r.get()": (
        "r = app.sync.enqueue([send.job(1), send.job(2)])\n    return [each.result_sync() for each in r]"
    ),
    "chord([send.s(1)], send.s(2))()": "gather([send.job(1)]).into(send, 2).enqueue_sync()",
    "chord(group(send.s(i) for i in x))(send.s())": "gather(send.job(i) for i in x).into(send).enqueue_sync()",
    "chord([send.s(1)], send.si(9)).delay()": "flow([send.job(1)]).then(send.job(9)).enqueue_sync()",
    "chain(send.signature((1,), {'subject': 2}, queue='q'), send.s())()": (
        "chain(send.options(queue='q').job(1, subject=2), send.late()).enqueue_sync()"
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_is_certain_is_rewritten(make: Make, call: str) -> None:
    found = make(f"{TASK}def f(args, kwargs, x, i, transaction):\n    {call}\n")
    assert found.moved == ["shop.base.send"], reasons(found)
    assert f"\n    {CALLS[call]}\n" in text(found, "base")


ASYNC = {
    "send.delay(1)": "await send.enqueue(1)",
    "return send.delay(1).get(timeout=2)": "return await (await send.enqueue(1)).result(timeout=2)",
    "send.apply_async((1,), countdown=2)": "await send.options(delay=2).enqueue(1)",
    "group(send.s(i) for i in x)()": "await app.enqueue(send.job(i) for i in x)",
    "chain(send.s(1), send.s())()": "await chain(send.job(1), send.late()).enqueue()",
}


@pytest.mark.parametrize("call", ASYNC)
def test_async_code_awaits(make: Make, call: str) -> None:
    found = make(f"{TASK}async def f(x):\n    {call}\n")
    assert f"\n    {ASYNC[call]}\n" in text(found, "base"), reasons(found)


STAYS = [
    "register(send)",
    "send.apply()",
    "send.chunks(x, 10).delay()",
    "x = [send.s(i) for i in x]",
    "return send.delay(1)",
    "r = send.delay(1)\n    return r",
    "send.delay(1).get(propagate=False)",
    "send.apply_async((1,), link=send.s())",
    "send.apply_async((1,), **x)",
    "send.apply_async((1,), expires=x)",
    "c.send_task('shop.base.send')",
    "mock.patch('shop.base.send.delay')",
    "chain(*x, send.s())()",
    "chain(group(send.s(1)), send.s())()",
    "getattr(send, x)()",
    "class View:\n        task = send",
    "async def view():\n        return list(send.delay(i).id for i in x)",
    "async def view():\n        run(lambda: send.delay(1).id)",
    "send.apply_async(  # to everybody\n        countdown=1\n    )",
]


@pytest.mark.parametrize("call", STAYS)
def test_a_use_that_is_not_certain_keeps_the_task(make: Make, call: str) -> None:
    found = make(f"{TASK}def f(x, mock):\n    {call}\n    send.delay(2)\n")
    assert (found.moved, found.stayed) == ([], ["shop.base.send"])
    assert not found.files
    lines = {each.line for each in found.findings if each.kind == "left"}
    assert {6, 13 + call.count("\n")} <= lines, reasons(found)  # the task, and the last line
    assert lines & {12, 13} - {13 + call.count("\n")}, reasons(found)


OPTIONS = {
    "name='s', queue='q'": "name='s', queue='q', max_lost=1",
    "acks_late=True": "",
    "autoretry_for=(OSError,)": (
        "\n    max_lost=1,\n    retry=Retry(attempts=4, base=180, factor=1, jitter=0),"
        "\n    on_error=Retry.only(OSError),\n"
    ),
    "autoretry_for=[OSError], retry_backoff=2, max_retries=None, acks_late=True": (
        "\n    retry=Retry(attempts=None, base=2, max=600, jitter=1),\n    on_error=Retry.only(OSError),\n"
    ),
    "autoretry_for=(OSError,), retry_kwargs={'max_retries': 9, 'countdown': 400}, acks_late=True": (
        "\n    retry=Retry(attempts=10, base=400, factor=1, jitter=0, max=400),\n    on_error=Retry.only(OSError),\n"
    ),
    "priority=5, acks_late=True": "priority=-5",
    "time_limit=30, acks_late=True": "timeout=30",
    "ignore_result=True, serializer='json', track_started=True": "max_lost=1",
    "expires=60": "expires=60, max_lost=1",
}


@pytest.mark.parametrize("given", OPTIONS)
def test_options_of_a_task(make: Make, given: str) -> None:
    found = make(f"@c.task({given})\ndef send(to):\n    return to\n")
    wanted = f"@app.task({OPTIONS[given]})\n" if OPTIONS[given] else "@app.task\n"
    assert wanted in text(found, "base"), text(found, "base")


@pytest.mark.parametrize(
    "given",
    [
        "base=Base",
        "soft_time_limit=3",
        "queue=Q",
        "throws=(OSError,)",
        "rate_limit='x'",
        "priority=P",
        "**opts",
        "new=1",
    ],
)
def test_other_options_keep_the_task(make: Make, given: str) -> None:
    found = make(f"@c.task({given})\ndef send(to):\n    return to\n")
    assert found.stayed == ["shop.base.send"]
    assert not found.files


@pytest.mark.parametrize(
    ("params", "checked"),
    [
        ("number: int", "number"),
        (
            "a, /, b: str, *rest: float, c: object = 1, d: typing.Any = 2, e: list[int] = (), **more: str",
            "b, e, rest, more",
        ),
        ("a, b=1", None),
    ],
)
def test_differences_of_every_task_are_reported(make: Make, params: str, checked: str | None) -> None:
    notes = reasons(make(f"@c.task\ndef order({params}):\n    pass\n"), "differs")
    assert "@c.task: ran alone in its process; it now runs in a thread" in notes
    words = f"the annotations of {checked} are checked when a job is made: other types raise BadArgument"
    assert (words in notes) if checked is not None else ("annotations" not in notes)


def test_an_id_of_a_call_is_used_once(make: Make) -> None:
    notes = reasons(make(f"{TASK}def f():\n    send.apply_async((1,), task_id='x')\n"), "differs")
    assert "task_id: Celery runs a repeated id again; Treadle returns the job that has it, or raises IdTaken" in notes


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("worker_max_tasks_per_child = 100", "`treadle worker --max-jobs 100`"),
        ("worker_max_memory_per_child = 200 * 1000", "`treadle worker --max-memory 200000K`"),
        ("worker_max_memory_per_child = read()", "`treadle worker --max-memory NK`"),
        ("worker_max_tasks_per_child = None", "options of `treadle worker`"),
        ("worker_concurrency = 4", "options of `treadle worker`"),
    ],
)
def test_settings_of_workers_name_the_option(make: Make, setting: str, words: str) -> None:
    found = make(f"{TASK}c.conf.{setting}\n")
    assert f"setting {setting.split()[0]}: {words}" in reasons(found)
    assert found.moved == ["shop.base.send"]


def test_self_becomes_the_context(make: Make) -> None:
    body = (
        "@shared_task(bind=True, max_retries=2)\n"
        "def send(self, to):\n"
        "    print(self.request.id, self.name, self.max_retries, self.request.retries == 1)\n"
        "    try:\n"
        "        return to\n"
        "    except OSError as exc:\n"
        "        self.retry(exc=exc, countdown=2 ** self.request.retries)\n"
        "    raise self.retry()\n"
    )
    new = text(make(body), "base")
    assert "def send(to):\n    print(current().id, current().task, 2, current().attempt - 1 == 1)\n" in new
    assert "        raise Retry.after(2 ** (current().attempt - 1)) from exc\n    raise Retry.after(180)\n" in new
    assert "@app.task(max_lost=1, retry=Retry(attempts=3), on_error=Retry.only())" in new


@pytest.mark.parametrize(
    "line", ["self.update_state()", "f(self)", "self.retry(args=())", "x = self.retry()", "self.request.args"]
)
def test_other_uses_of_self_keep_the_task(make: Make, line: str) -> None:
    found = make(f"@c.task(bind=True)\ndef send(self, to):\n    {line}\n")
    assert found.stayed == ["shop.base.send"]


def test_aliases_and_re_exports_are_followed(make: Make) -> None:
    found = make(
        TASK,
        api="from .base import send as mail\n\nalias = mail\n",
        one="from shop import api\n\n\ndef f():\n    api.mail.delay(1)\n    api.alias.delay(2)\n",
        two="import shop.base as b\n\n\ndef f(send):\n    b.send.delay(1)\n    send.delay(2)\n",
    )
    assert "api.mail.enqueue_sync(1)\n    api.alias.enqueue_sync(2)" in text(found, "one")
    assert "b.send.enqueue_sync(1)\n    send.delay(2)" in text(found, "two")  # the parameter is another object
    assert "send.delay(2): is not known to be a call of a task" in reasons(found)


@pytest.mark.parametrize(
    "other",
    [
        "from shop.base import *\n",
        "from shop.base import send\n\nmail = send\nmail = other.mail\n",
        "from shop.base import send\n\nTASKS = {}\nTASKS['send'] = send\n",
        "try:\n    from shop.base import send\nexcept ImportError:\n    send = None\n\n\ndef f():\n    send.delay(1)\n",
    ],
)
def test_names_that_cannot_be_followed_keep_the_task(make: Make, other: str) -> None:
    assert make(TASK, other=other).stayed == ["shop.base.send"]


def test_sync_code_on_an_event_loop_keeps_its_tasks(make: Make) -> None:
    found = make(
        f"{TASK}def inner():\n    send.delay(1)\n\n\ndef outer():\n    inner()\n\n\nasync def view():\n    outer()\n"
    )
    assert found.stayed == ["shop.base.send"]
    assert "runs on the event loop of shop.base.view, where enqueue_sync() refuses to block" in reasons(found)


def test_a_module_without_tasks_starts_a_chain(make: Make) -> None:
    found = make(
        TASK,
        web="from celery import chain\nfrom shop.base import send\n\n\n"
        "def f():\n    chain(send.s(1), send.s()).delay()\n",
    )
    assert "    chain(send.job(1), send.late()).enqueue_sync()\n" in text(found, "web")


def test_a_chain_keeps_all_of_its_tasks_together(make: Make) -> None:
    other = "@c.task(base=Base)\ndef other(x): ...\n\n\n@c.task\ndef third(x): ...\n\n\n"
    found = make(f"{TASK}{other}def f():\n    chain(send.s(1), other.s())()\n    group(send.s(1), third.s(2))()\n")
    assert found.moved == []
    assert found.stayed == ["shop.base.other", "shop.base.send", "shop.base.third"]


BEAT = {
    "crontab(minute='*/15')": '@app.cron("*/15 * * * *", name="x")',
    "crontab(0, 3, 'mon-fri')": '@app.cron("0 3 * * mon-fri", name="x")',
    "timedelta(minutes=1)": '@app.every(60, name="x")',
    "30.0": '@app.every(30.0, name="x")',
}
NO_BEAT = [
    "crontab(day_of_month=1, day_of_week=1)",
    "crontab(day_of_week='sat-mon')",
    "crontab(hour=H)",
    "solar('x')",
    "S",
]
BEGIN = "from datetime import timedelta\nfrom celery.schedules import crontab, solar\n\n\n"


@pytest.mark.parametrize("schedule", [*BEAT, *NO_BEAT])
def test_entries_of_beat_become_decorators(make: Make, schedule: str) -> None:
    entry = f"{{'x': {{'task': 'shop.base.send', 'schedule': {schedule}}}}}"
    found = make(f"{BEGIN}{TASK}c.conf.beat_schedule = {entry}\n")
    if schedule in BEAT:
        assert f"{BEAT[schedule]}\n@app.task(max_lost=1)\ndef send" in text(found, "base"), reasons(found)
        assert "beat_schedule = {}" in text(found, "base")
    else:
        assert found.stayed == ["shop.base.send"]


def test_arguments_and_the_time_zone_of_a_schedule(make: Make) -> None:
    more = "'args': (1,), 'kwargs': {'subject': 'a'}"
    entry = f"{{'x': {{'task': 'shop.base.send', 'schedule': crontab(hour=3, minute=0), {more}}}}}"
    found = make(f"{BEGIN}{TASK}c.conf.timezone = 'Asia/Tokyo'\nc.conf.update(beat_schedule={entry})\n")
    wanted = '@app.cron("0 3 * * *", tz="Asia/Tokyo", name="x", args=[1], kwargs={"subject": "a"})\n'
    assert wanted in text(found, "base"), reasons(found)


@pytest.mark.parametrize("line", ["raise Ignore()", "print(celery.current_task.name)", "print(c.current_task.name)"])
def test_a_task_that_needs_a_worker_of_celery_stays(make: Make, line: str) -> None:
    found = make(f"import celery\nfrom celery.exceptions import Ignore\n\n\n@c.task\ndef send(to):\n    {line}\n")
    assert found.stayed == ["shop.base.send"]


def test_a_decorator_around_the_task_keeps_it(make: Make) -> None:
    found = make(f"@once\n{TASK}@c.task\n@once\ndef mail(): ...\n")
    assert (found.moved, found.stayed) == (["shop.base.mail"], ["shop.base.send"])


def test_a_method_that_async_code_calls_keeps_its_tasks(make: Make) -> None:
    view = "class View:\n    async def get(self):\n        self.tell()\n\n    def tell(self):\n        send.delay(1)\n"
    assert make(f"{TASK}{view}").stayed == ["shop.base.send"]


def test_a_function_inside_async_code_keeps_its_tasks(make: Make) -> None:
    view = "async def view():\n    def inner():\n        send.delay(1)\n\n    inner()\n"
    assert make(f"{TASK}{view}").stayed == ["shop.base.send"]


def test_two_numbers_of_retries_keep_the_task(make: Make) -> None:
    given = "bind=True, autoretry_for=(OSError,), retry_kwargs={'max_retries': 5}"
    found = make(f"@c.task({given})\ndef send(self):\n    print(self.max_retries)\n")
    assert found.stayed == ["shop.base.send"]


def test_an_app_with_an_annotation_is_found(make: Make, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(
        "from celery import Celery\n\nc: Celery = Celery('shop')\nc.conf.task_time_limit = 30 * 60\n\n\n"
        "@c.task\ndef send(): ...\n"
    )
    found = plan(Path("one.py"))
    assert "@app.task(timeout=1800, max_lost=1)" in found.files[Path("one.py")].decode(), reasons(found)


def test_tasks_of_an_app_that_is_not_known_are_named(make: Make, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(
        "try:\n    from celery import Celery\nexcept ImportError:\n    Celery = None\n\nc = Celery('shop')\n\n\n"
        "@c.task\ndef send(): ...\n"
    )
    assert {2, 9} <= {each.line for each in plan(Path("one.py")).findings}


@pytest.mark.parametrize(
    "setting",
    [
        "c.conf.task_annotations = {}",
        "c.conf.task_routes = route",
        "c.conf.update(settings)",
        "c.config_from_object('elsewhere')",
        "c.conf.task_serializer = 'pickle'",
        "d = Celery('second')",
        "c.conf.timezone = 'UTC'\nc.conf.timezone = 'Asia/Tokyo'",
        "if DEBUG:\n    c.conf.task_time_limit = 9",
        "def configure():\n    c.conf.update(task_acks_late=True)",
    ],
)
def test_settings_that_cannot_be_known_stop_the_move(make: Make, setting: str) -> None:
    found = make(f"{TASK}{setting}\n")
    assert (found.moved, found.files) == ([], {})


def test_settings_of_another_module_are_applied(make: Make) -> None:
    config = "task_routes = {'shop.base.*': {'queue': 'mail'}}\ntask_acks_late = True\ntask_time_limit = 9\n"
    found = make(f"{TASK}c.config_from_object('shop.config')\n", config=config)
    assert '@app.task(queue="mail", timeout=9)' in text(found, "base"), reasons(found)


def test_settings_of_django_are_applied(make: Make) -> None:
    config = "CELERY_TASK_ROUTES = {'shop.base.send': 'mail'}\n"
    found = make(f"{TASK}c.config_from_object('django.conf:settings', namespace='CELERY')\n", settings=config)
    assert '@app.task(queue="mail", max_lost=1)' in text(found, "base"), reasons(found)


def test_names_that_are_taken_are_not_taken_again(make: Make) -> None:
    found = make(
        "",
        tasks="from celery import shared_task\n\napp = Retry = 1\n\n\n"
        "@shared_task(autoretry_for=(OSError,))\ndef f(): ...\n",
    )
    new = text(found, "tasks")
    assert "from treadle import Retry as treadle_Retry\nfrom shop.treadle_app import app as treadle_app\n" in new
    assert "@treadle_app.task(" in new
    assert "retry=treadle_Retry(attempts=4, " in new
    assert "celery" not in new


# --- files


def test_everything_else_keeps_its_bytes(make: Make, tmp_path: Path) -> None:
    make()
    source = (
        b"# -*- coding: latin-1 -*-\r\n'''Caf\xe9.'''\r\nfrom celery import shared_task\r\n\r\n\r\n"
        b"@shared_task  # caf\xe9\r\ndef send(to):\r\n\tx = {  'a' :1 }   # odd\r\n\treturn  to\r\n"
    )
    (tmp_path / "shop/tasks.py").write_bytes(source)
    new = plan(Path("shop")).files[Path("shop/tasks.py")]
    kept = source.replace(b"from celery import shared_task\r\n", b"from shop.treadle_app import app\r\n")
    assert new == kept.replace(b"@shared_task  #", b"@app.task(max_lost=1)  #")


def test_files_that_cannot_be_read_are_named(make: Make, tmp_path: Path) -> None:
    make(TASK)
    (tmp_path / "shop/old.py").write_text("print 'python 2'\n")
    (tmp_path / "shop/bytes.py").write_bytes(b"x = '\xff'\n")
    (tmp_path / "outside.py").write_text("x = 1\n")
    (tmp_path / "shop/link.py").symlink_to(tmp_path / "outside.py")
    (tmp_path / "shop/inside.py").symlink_to(tmp_path / "shop/base.py")
    found = plan(Path("shop"))
    named = {each.file for each in found.findings if each.section == "files-that-cannot-be-read"}
    assert named == {"shop/old.py", "shop/bytes.py", "shop/link.py"}
    assert found.moved == ["shop.base.send"]
    assert run(["from", "celery", "shop"]) == 1


def test_a_file_that_this_python_does_not_compile_is_named(make: Make) -> None:
    """libcst parses it: as a file with the syntax of a newer Python."""
    found = make(mail=f"from .base import c\n\n\n{TASK}send.delay(1)\n\nreturn send\n")
    assert Path("shop/mail.py") not in found.files
    assert "cannot be parsed: 'return' outside function" in reasons(found)


def test_a_second_run_changes_nothing_and_a_later_one_adds_its_modules(make: Make, tmp_path: Path) -> None:
    def write_all(found: Plan) -> None:
        write(found.files, found.before)

    write_all(make(TASK))
    assert plan(Path("shop")).files == {}
    (tmp_path / "shop/more.py").write_text("from shop.base import c\n\n\n@c.task\ndef more(): ...\n")
    write_all(plan(Path("shop")))
    assert (
        (tmp_path / "shop/treadle_app.py")
        .read_text()
        .endswith('app.autodiscover("shop.base")\napp.autodiscover("shop.more")\n')
    )
    assert plan(Path("shop")).files == {}


def test_writing_needs_a_clean_tree(make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True, capture_output=True)

    make(TASK)
    before = (tmp_path / "shop/base.py").read_bytes()
    assert run(["from", "celery", "shop", "--write"]) == 2
    assert "is not in a git repository" in capsys.readouterr().err
    git("init")
    assert run(["from", "celery", "shop", "--write"]) == 2
    assert "has changes that are not committed" in capsys.readouterr().err
    assert (tmp_path / "shop/base.py").read_bytes() == before
    git("add", ".")
    git("commit", "-m", "x")
    git("config", "core.fsmonitor", f"touch {tmp_path / 'ran'}; false")  # a program that git would run
    assert run(["from", "celery", "shop", "--write", "--json"]) == 0
    assert not (tmp_path / "ran").exists()
    report = json.loads(capsys.readouterr().out)
    assert (report["written"], report["moved"]) == (True, ["shop.base.send"])
    assert (tmp_path / "shop/base.py").read_bytes() != before


def test_all_files_are_written_or_none(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = make(TASK, other="from shop.base import send\n\n\ndef f():\n    send.delay(1)\n")
    replace, done = os.replace, list[object]()

    def failing(source: object, target: object) -> None:
        done.append(target)
        if len(done) == 2:
            raise OSError("no space left on device")
        replace(source, target)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(NotWritten, match="no space left"):
        write(found.files, found.before)
    assert {path: path.read_bytes() if path.exists() else b"" for path in found.files} == found.before
    assert sorted(path.name for path in (tmp_path / "shop").iterdir()) == ["__init__.py", "base.py", "other.py"]


def test_a_file_that_was_changed_meanwhile_is_not_overwritten(make: Make, tmp_path: Path) -> None:
    found = make(TASK)
    (tmp_path / "shop/base.py").write_text("x = 1\n")
    with pytest.raises(NotWritten, match="has changed since it was read"):
        write(found.files, found.before)


def test_the_report_names_sections_of_the_guide() -> None:
    guide = (ROOT / GUIDE).read_text()
    anchors = {
        re.sub(r"[^a-z0-9 -]", "", line.lower()).replace(" ", "-") for line in re.findall("^#+ (.*)$", guide, re.M)
    }
    source = "".join(path.read_text() for path in (ROOT / "src/treadle/contrib/celery").glob("*.py"))
    words = set(re.findall(r'"([a-z]+(?:-[a-z]+)+)"', source)) - {"site-packages"}
    assert {"the-app", "canvas", "files-that-cannot-be-read"} <= anchors
    found: list[Finding] = plan(ROOT / "tests/contrib/celery/program/shop").findings
    assert {each.section for each in found} <= anchors
    assert words <= anchors


@pytest.mark.parametrize("words", [["nowhere"], []])
def test_a_usage_error_exits_with_2(words: list[str]) -> None:
    assert run(["from", "celery", *words]) == 2
