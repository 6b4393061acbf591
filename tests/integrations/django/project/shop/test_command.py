"""The words that `manage.py treadle` passes on."""

import sys
from unittest.mock import patch

from django.test import SimpleTestCase, override_settings

from treadle.cli.recycling_options import EXCLUDE_RELOAD
from treadle.integrations.django.management.commands.treadle import completed

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
