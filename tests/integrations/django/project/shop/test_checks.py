"""Settings that are wrong: `manage.py check`, and errors that name the setting."""

from io import StringIO

from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.test import SimpleTestCase, override_settings

from treadle.integrations.django import app_of, checks, options, schedules

BACKEND = "treadle.integrations.django.TreadleBackend"


def found(given, alias="default"):
    return [each.id for each in checks.of_backend(alias, options.read(alias, given))]


class Settings(SimpleTestCase):
    databases = "__all__"

    def test_the_project_is_right(self):
        out = StringIO()
        call_command("check", stdout=out)
        self.assertIn("no issues", out.getvalue())

    def test_checks(self):
        self.assertEqual(found({}), [])
        self.assertEqual(found({"database": "gone"}), ["treadle.E002"])
        self.assertEqual(found({"url": "redis://localhost"}), [])
        self.assertEqual(found({"url": "redis://localhost", "commit": "same"}), ["treadle.E003"])

        self.assertEqual(found({"commit": "outbox"}), ["treadle.E003"])
        self.assertEqual(found({"url": "redis://localhost", "commit": "outbox"}), [])
        self.assertEqual(found({"url": "redis://localhost", "commit": "outbox", "database": "gone"}), ["treadle.E002"])

    def test_options(self):
        for given, text in (
            ({"schemas": "x"}, "did you mean 'schema'?"),
            ({"commit": "later"}, "expected one of same, after, now, outbox, found 'later'"),
            ({"url": 3}, "expected a storage URL or None, found 3"),
            ({"modules": "shop.jobs"}, "expected a list of module names"),
            ({"migrate": 1}, "expected True or False"),
            ({"database": ""}, "expected a text"),
        ):
            with self.subTest(given), self.assertRaisesMessage(ImproperlyConfigured, text):
                options.read("default", given)

    def test_schedules(self):
        for given, text in (
            ([], "expected a dict"),
            ({"a": 1}, "expected a dict, found 1"),
            ({"a": {"cron": "* * * * *"}}, "expected the path of a task"),
            ({"a": {"task": "shop.tasks.report"}}, 'give exactly one of "cron" and "every"'),
            ({"a": {"task": "shop.tasks.report", "cron": "* * * * *", "evry": 3}}, "did you mean 'every'?"),
            ({"a b": {"task": "shop.tasks.report", "every": 60}}, "found 'a b'"),
            ({"a": {"task": "shop.tasks.report", "cron": "never"}}, "TREADLE_SCHEDULES['a']"),
            ({"a": {"task": "shop.tasks.report", "every": 60, "overlap": "maybe"}}, "maybe"),
        ):
            with self.subTest(given), override_settings(TREADLE_SCHEDULES=given or [1]):
                with self.assertRaisesMessage(ImproperlyConfigured, text):
                    schedules.read()
                self.assertEqual([each.id for each in checks.of_schedules()], ["treadle.E005"])

    def test_schedules_of_wrong_tasks(self):
        from treadle.integrations.django.job_store import store_of

        for given, text in (
            ({"task": "shop.tasks.gone", "every": 60}, "cannot be imported"),
            ({"task": "shop.models.Order", "every": 60}, "not a task"),
            ({"task": "shop.tasks.report", "cron": "never"}, "TREADLE_SCHEDULES['a']"),
        ):
            with (
                self.subTest(given),
                override_settings(TREADLE_SCHEDULES={"a": given}),
                self.assertRaisesMessage(ImproperlyConfigured, text),
            ):
                schedules.declare(store_of("default"), ["default"])

    def test_an_alias_that_is_not_ours(self):
        with self.assertRaisesMessage(ImproperlyConfigured, "TASKS['plain'] is no Treadle backend"):
            app_of("plain")
