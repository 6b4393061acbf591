"""The words that `manage.py treadle` passes on."""

import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from unittest.mock import patch

import click
from django.conf import settings
from django.test import SimpleTestCase, TransactionTestCase, override_settings

from shop import tasks
from treadle.cli import root
from treadle.cli.group import Group
from treadle.cli.options import EXCLUDE_RELOAD
from treadle.core.command_lines import command
from treadle.core.errors import UnknownSchedule
from treadle.integrations.django import app_of, database_app
from treadle.integrations.django.management.commands.treadle import app_name, completed, leave

# Commands that use no storage, or name both of theirs.
WITHOUT_APP = {
    ("init",),
    ("token",),
    ("demo",),
    ("storage", "move"),
    ("storage", "keys", "new"),
    ("delayed", "submit"),
    ("from", "celery"),
}

VALUES = {"drain": "30", "max_memory": "1GB", "max_jobs": "5", "health": "127.0.0.1:8001", "health_file": "alive"}


def reloads(*words):
    return "--reload" in completed(["worker", *words], None)


class Reload(SimpleTestCase):
    databases = "__all__"

    def test_only_in_development(self):
        self.assertFalse(reloads())
        with override_settings(DEBUG=True):
            self.assertTrue(reloads())
            self.assertTrue(reloads("--concurrency", "3"))
            self.assertFalse(reloads("--no-reload"))
            self.assertNotIn("--no-reload", completed(["worker", "--no-reload"], None))
            with patch.object(sys, "platform", "win32"):
                self.assertFalse(reloads())

    @override_settings(DEBUG=True)
    def test_options_that_exclude_it(self):
        for name in EXCLUDE_RELOAD:
            with self.subTest(name):
                self.assertFalse(reloads(f"--{name.replace('_', '-')}", VALUES.get(name, "60")))


def commands(group, words=()):
    """The words of each command, and of each group with a command of its own."""
    for name in group.list_commands(click.Context(group)):
        command, path = group.get_command(click.Context(group), name), (*words, name)
        if isinstance(command, click.Group):
            if isinstance(command, Group) and command.with_default([]):
                yield path
            yield from commands(command, path)
        else:
            yield path


class Storage(SimpleTestCase):
    databases = "__all__"

    def test_each_command_uses_the_storage_of_the_project(self):
        """Also commands that will be added: without the app they would use treadle.db in the current directory."""
        for words in commands(root.treadle):
            if words in WITHOUT_APP or words[0] == "wasi":
                continue
            with self.subTest(words=words):
                self.assertIn(app_name(None), completed([*words], None))
                self.assertIn(app_name("now"), completed([*words], "now"))
                self.assertIn(app_name(None), completed([*words, "--log-level=info"], None))
        self.assertIn(app_name(None), completed(["queues", "--json"], None))
        self.assertIn(app_name(None), completed(["storage", "relay", "--once"], None))

    def test_another_storage_can_be_named(self):
        for words in (["queues", "--url", "memory://"], ["jobs", "list", "--app=other:app"], ["queues", "--help"]):
            self.assertEqual(completed(words, None), words)


class Words(SimpleTestCase):
    """Commands in the messages of a web process, which no command of manage.py has begun."""

    databases = "__all__"

    def test_messages_name_manage_py(self):
        self.assertEqual(command("jobs", "show", "a"), "`python manage.py treadle --backend ALIAS jobs show a`")
        with self.assertRaises(UnknownSchedule) as raised:
            app_of("elsewhere").sync.schedules.pause("nightli")
        self.assertIn("`python manage.py treadle --backend ALIAS schedules list`", str(raised.exception))

    def test_a_project_with_one_storage_needs_no_alias(self):
        with override_settings(TASKS={"default": settings.TASKS["default"], "now": settings.TASKS["now"]}):
            self.assertEqual(database_app.places(), 1)


class Hints(TransactionTestCase):
    """A command that is printed can be copied: it names manage.py, and no app."""

    def printed(self, *words, alias=None):
        out = StringIO()
        with patch.object(sys, "argv", ["manage.py"]), redirect_stdout(out), redirect_stderr(out):
            try:
                leave([*words], alias)
            except SystemExit as error:
                self.assertIn(error.code, (1, 2))
        return out.getvalue()

    def test_explain_doctor_and_errors(self):
        job = tasks.report.enqueue()
        self.assertIn(
            "`python manage.py treadle worker --queues default` starts", self.printed("jobs", "explain", job.id)
        )
        self.assertIn("start one: `python manage.py treadle worker --queues default`", self.printed("doctor"))
        self.assertIn("see `python manage.py treadle --help`", self.printed("nothing"))
        self.assertIn("Usage: python manage.py treadle queues", self.printed("queues", "--help"))
        for named in ((), ("worker",), ("up",), ("dashboard",), ("jobs", "list"), ("shell",)):
            page = self.printed(*named, "--help")
            self.assertIn("this project", " ".join(page.split()))
            for words in ("TREADLE_URL", "treadle.db", "only app", "this project in this directory"):
                self.assertNotIn(words, " ".join(page.split()), named)
        words = "`python manage.py treadle --backend now worker --queues default`"
        self.assertIn(words, self.printed("jobs", "explain", job.id, alias="now"))
        app_of().sync.close()
