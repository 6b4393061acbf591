"""Settings that are wrong: `manage.py check`, and errors that name the setting."""

from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import connection, connections
from django.test import SimpleTestCase, override_settings

from treadle import Keys
from treadle.integrations.django import app_of, checks, database_app, options, schedules

BACKEND = "treadle.integrations.django.TreadleBackend"


def found(given, alias="default"):
    return [each.id for each in checks.of_backend(alias, options.read(alias, given))]


class Settings(SimpleTestCase):
    databases = "__all__"

    def test_the_project_is_right(self):
        out = StringIO()
        call_command("check", stdout=out)
        self.assertIn("no issues", out.getvalue())

    def test_an_invalid_backend_is_found_by_the_checks(self):
        self.assertEqual(found({}), [])
        self.assertEqual(found({"database": "gone"}), ["treadle.E002"])
        self.assertEqual(found({"url": "redis://localhost"}), [])
        self.assertEqual(found({"url": "redis://localhost", "commit": "same"}), ["treadle.E003"])

        self.assertEqual(found({"commit": "outbox"}), ["treadle.E003"])
        self.assertEqual(found({"url": "redis://localhost", "commit": "outbox"}), [])
        self.assertEqual(found({"url": "redis://localhost", "commit": "outbox", "database": "gone"}), ["treadle.E002"])
        self.assertEqual(found({"url": "redis://localhost", "database": "gone"}), ["treadle.E002"])
        for url in ("nonsense", "redis://localhost:port/0", "mysql://localhost/shop"):
            self.assertEqual(found({"url": url}), ["treadle.E006"])

    def test_checks_of_databases(self):
        with self.modify_settings(INSTALLED_APPS={"remove": "treadle.integrations.django"}):
            self.assertEqual(found({}), ["treadle.E001"])
        options = {
            "sqlite": ({"transaction_mode": None}, ["treadle.W001"]),
            "postgresql": ({"isolation_level": 3}, ["treadle.W002"]),
        }[connection.vendor]
        with patch.dict(connection.settings_dict, OPTIONS=options[0]):
            self.assertEqual(found({}), options[1])
        with patch.object(type(connections["default"]), "vendor", "oracle"):
            self.assertEqual(found({}), ["treadle.E002"])
        if connection.vendor == "postgresql":
            self.assertEqual(found({"schema": "x" * 100}), ["treadle.E002"])
            unmade = {"BACKEND": BACKEND, "OPTIONS": {"schema": "unmade", "migrate": False}}
            with override_settings(TASKS={"default": unmade}):
                errors = list(checks.of_tables(databases=["default"]))
            self.assertEqual([each.id for each in errors], ["treadle.E004"])

    def test_an_outbox_without_tables(self):
        boxed = {"BACKEND": BACKEND, "OPTIONS": {"url": "memory://check", "commit": "outbox", "migrate": False}}
        with override_settings(TASKS={"default": boxed}):
            self.assertEqual(list(checks.of_tables(databases=["default"])), [])
            self.assertEqual(list(checks.of_tables(databases=[])), [])
            with connection.cursor() as cursor:
                cursor.execute("ALTER TABLE treadle_outbox RENAME TO gone")
            try:
                # another process begins: this one has found the tables before
                database_app.store_of("default").app.outbox._forget()
                [error] = checks.of_tables(databases=["default"])
            finally:
                with connection.cursor() as cursor:
                    cursor.execute("ALTER TABLE gone RENAME TO treadle_outbox")
        self.assertEqual(error.id, "treadle.E004")
        self.assertIn("outbox", error.msg)
        self.assertIn("manage.py treadle storage migrate", error.hint)

    def test_an_invalid_option_is_named(self):
        for given, text in (
            ({"schemas": "x"}, "did you mean 'schema'?"),
            ({"commit": "later"}, "expected one of same, after, now, outbox, found 'later'"),
            ({"url": 3}, "expected a storage URL or None, found 3"),
            ({"modules": "shop.jobs"}, "expected a list of module names"),
            ({"migrate": 1}, "expected True or False"),
            ({"database": ""}, "expected a text"),
            ({"schema": None}, "expected a text, found None"),
            ({"modules": 5}, "expected a list of module names, found 5"),
            ({"modules": ["shop.jobs", 5]}, "expected a list of module names"),
            ({"commit": ""}, "expected one of same, after, now, outbox, found ''"),
            ({"commit": False}, "found False"),
            ({"url": ""}, "expected a storage URL or None, found ''"),
            ({5: 5}, "TASKS['default']['OPTIONS'][5]: unknown option"),
            (None, "TASKS['default']['OPTIONS']: expected a dict, found None."),
            ({"offload": "64k"}, "expected a number of bytes or None, found '64k'"),
            ({"redact": "iban"}, "expected a list of names of arguments and fields"),
            ({"keys": 5}, "expected Keys(...) or a list of keys, found a int"),
            ({"keys": "old:c2VjcmV0"}, "the key 'old': expected ID:BASE64"),
        ):
            with self.subTest(given), self.assertRaisesMessage(ImproperlyConfigured, text):
                options.read("default", given)

    def test_an_invalid_schedule_is_named(self):
        for given, text in (
            ([], "expected a dict"),
            ({"a": 1}, "expected a dict, found 1"),
            ({"a": {"cron": "* * * * *"}}, "expected the path of a task"),
            ({"a": {"task": "shop.tasks.report"}}, 'give exactly one of "cron" and "every"'),
            ({"a": {"task": "shop.tasks.report", "cron": "* * * * *", "evry": 3}}, "did you mean 'every'?"),
            ({"a b": {"task": "shop.tasks.report", "every": 60}}, "found 'a b'"),
            ({"a": {"task": "shop.tasks.report", "cron": "never"}}, "TREADLE_SCHEDULES['a']"),
            ({"a": {"task": "shop.tasks.report", "every": 60, "overlap": "maybe"}}, "maybe"),
            ({"a": {"task": "shop.tasks.report", "every": 60, 5: 5}}, "unknown key 5"),
            ({"a": {"task": "report", "every": 60}}, "expected the path of a task"),
            ({"a": {"task": "shop.tasks.report", "every": 60, "args": "xy"}}, "expected a list, found 'xy'"),
            ({"a": {"task": "shop.tasks.report", "every": 60, "kwargs": [1]}}, "expected a dict with names"),
            ({"a": {"task": "shop.tasks.report", "every": 60, "kwargs": {1: 1}}}, "expected a dict with names"),
            ({"a": {"task": "shop.tasks.report", "every": 60, "backend": "gone"}}, "found 'gone'"),
            ({"a": {"task": "shop.tasks.report", "every": 60, "backend": ["default"]}}, "found ['default']"),
        ):
            with self.subTest(given), override_settings(TREADLE_SCHEDULES=given or [1]):
                with self.assertRaisesMessage(ImproperlyConfigured, text):
                    schedules.read()
                self.assertEqual([each.id for each in checks.of_schedules()], ["treadle.E005"])

    def test_invalid_options_of_texts_are_found_by_the_checks(self):
        self.assertEqual(found({"blobs": "texts", "offload": 5_000, "keys": Keys.make("a"), "redact": ["iban"]}), [])
        self.assertEqual(found({"blobs": "ftp://x"}), ["treadle.E007"])
        self.assertEqual(found({"offload": 5_000}), ["treadle.E007"])
        both = options.read("default", {"url": "memory://texts", "keys": f"{Keys.make('b')}, {Keys.make('a')}"})
        self.assertEqual(both.keys.names, ("b", "a"))
        self.assertIs(database_app.store_for(both), database_app.store_for(both))
        with self.assertRaisesMessage(ImproperlyConfigured, "differ in 'blobs', 'offload', 'keys' or 'redact'"):
            database_app.store_for(options.read("other", {"url": "memory://texts"}))

    def test_the_options_set_how_an_app_stores_and_shows_texts(self):
        with TemporaryDirectory() as folder:
            given = {
                "url": f"sqlite:///{folder}/jobs.db",
                "blobs": f"{folder}/texts",
                "offload": 2_000,
                "keys": [Keys.make("2026")],
                "redact": ["iban"],
            }
            store = database_app.DatabaseApp(options.read("default", given))
            with store.opened() as app:
                task = app.task(lambda iban, text: None, name="pay")
                job = app.sync.enqueue(task.job("DE02120300000000202051", "x" * 5_000))
                row = app.sync.jobs.whole(job)
            self.assertIn("2026", app.storage.capabilities.keys)
            self.assertIn("DE02120300000000202051", row.job.payload)
            self.assertNotIn("DE02120300000000202051", app._core.redactor.row(row).job.payload)
            [kept] = list(Path(folder, "texts").glob("??/*/*"))
            self.assertIn(b'"sealed"', kept.read_bytes()[:40])

    def test_backends_that_share_their_jobs(self):
        from treadle.integrations.django.database_app import DatabaseApp

        both = {
            "default": {"BACKEND": BACKEND, "OPTIONS": {"modules": ["shop.a"]}},
            "now": {"BACKEND": BACKEND, "OPTIONS": {"commit": "now", "modules": ["shop.b"], "migrate": False}},
            "other": {"BACKEND": BACKEND, "OPTIONS": {"url": "memory://", "modules": ["shop.c"]}},
        }
        with override_settings(TASKS=both):
            store = DatabaseApp(options.read("default", {"modules": ["shop.a"]}))
            self.assertEqual((store.modules, store.migrates), (["shop.a", "shop.b"], False))

    def test_a_schedule_belongs_to_one_backend(self):
        from treadle.integrations.django.database_app import store_of

        self.assertEqual(schedules.declare(store_of("elsewhere"), ["elsewhere"]), [])

    def test_schedules_of_wrong_tasks(self):
        from treadle.integrations.django.database_app import store_of

        for given, text in (
            ({"task": "shop.tasks.gone", "every": 60}, "cannot be imported"),
            ({"task": "shop.models.Order", "every": 60}, "not a task"),
            ({"task": "shop.tasks.report", "cron": "never"}, "cannot be read"),
            ({"task": "shop.tasks.send", "every": 60, "args": [1]}, "missing a required argument: 'to'"),
            ({"task": "shop.tasks.report", "every": 60, "kwargs": {"x": 1}}, "unexpected keyword argument 'x'"),
            ({"task": "shop.tasks.note", "every": 60}, "order"),
            ({"task": "shop.tasks.note", "every": 60, "args": ["one"]}, "order"),
        ):
            with self.subTest(given), override_settings(TREADLE_SCHEDULES={"b": given, "a": given}):
                with self.assertRaisesMessage(ImproperlyConfigured, text):
                    schedules.declare(store_of("default"), ["default"])
                found = list(checks.of_schedules())
                self.assertEqual([each.id for each in found], ["treadle.E005"] * 2)
                self.assertIn(text, found[1].msg)

    def test_a_schedule_of_a_task_with_context(self):
        fine = {"task": "shop.tasks.whoami", "every": 60}
        with override_settings(TREADLE_SCHEDULES={"a": fine}):
            self.assertEqual(list(checks.of_schedules()), [])

    def test_an_alias_of_another_backend_is_refused(self):
        with self.assertRaisesMessage(ImproperlyConfigured, "TASKS['plain'] is no Treadle backend"):
            app_of("plain")
