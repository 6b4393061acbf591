"""The words that `manage.py treadle` passes on."""

import sys
from unittest.mock import patch

import click
from django.test import SimpleTestCase, override_settings

from treadle.cli import root
from treadle.cli.group import Group
from treadle.cli.recycling_options import EXCLUDE_RELOAD
from treadle.integrations.django.management.commands.treadle import app_name, completed

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
