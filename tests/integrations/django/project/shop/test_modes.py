"""`run_due` in a TestCase with each value of `commit`, on the database and on storages elsewhere."""

from datetime import timedelta

from django.conf import settings
from django.db import transaction
from django.test import TestCase, TransactionTestCase, override_settings
from django.utils import timezone

from shop import odd_tasks, tasks
from shop.models import Order
from shop.odd_tasks import once
from treadle import current
from treadle.errors import NotRunning
from treadle.integrations.django import app_of
from treadle.integrations.django.testing import run_due

MODES = ("default", "now", "after", "elsewhere", "boxed", "memory")
FAR = {"elsewhere": "after", "boxed": "outbox", "memory": "outbox"}
TASKS = settings.TASKS | {
    alias: {
        "BACKEND": "treadle.integrations.django.TreadleBackend",
        "OPTIONS": {
            "url": "memory://" if alias == "memory" else f"sqlite:///{settings.FOLDER}/modes-{alias}.db",
            "commit": commit,
        },
    }
    for alias, commit in FAR.items()
}


def close_far():
    for alias in FAR:
        app_of(alias).sync.close()


@override_settings(TASKS=TASKS)
class Modes(TestCase):
    @classmethod
    def setUpTestData(cls):
        cls.of_class = [odd_tasks.echo.using(backend=alias).enqueue("class") for alias in ("default", "after")]

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        close_far()

    def setUp(self):
        self.order = Order.objects.create(what="a boat")

    def test_jobs_of_the_class_run_in_each_test(self):
        self.assertEqual(run_due(), 2)
        for sent in self.of_class:
            sent.refresh()
            self.assertEqual(sent.status, "SUCCESSFUL")

    test_once_more = test_jobs_of_the_class_run_in_each_test

    def test_jobs_of_each_mode_run_in_a_test(self):
        run_due()
        for alias in MODES:
            with self.subTest(alias):
                outside = odd_tasks.echo.using(backend=alias).enqueue("outside")
                with transaction.atomic():
                    inside = odd_tasks.echo.using(backend=alias).enqueue("inside")
                self.assertEqual(run_due(), 2)
                for sent in (outside, inside):
                    sent.refresh()
                    self.assertEqual(sent.status, "SUCCESSFUL")
                self.assertIsNotNone(inside.enqueued_at)
                self.assertEqual(run_due(), 0)

    def test_failures_and_jobs_of_jobs(self):
        run_due()
        for alias in MODES:
            with self.subTest(alias):
                failed = tasks.flaky.using(backend=alias).enqueue()
                paid = tasks.pay.using(backend=alias).enqueue(self.order.pk)
                tasks.chained.using(backend=alias).enqueue(1)  # its jobs are of the default backend
                self.assertEqual(run_due(), 6)
                failed.refresh()
                self.assertEqual((failed.status, failed.attempts), ("FAILED", 2))
                paid.refresh()
                self.assertEqual(paid.status, "SUCCESSFUL")
                later = odd_tasks.echo.using(backend=alias, run_after=timezone.now() + timedelta(hours=1)).enqueue()
                self.assertEqual(run_due(), 0)
                later.refresh()
                self.assertEqual(later.status, "READY")
                with self.assertRaises(tasks.OutOfStock):
                    tasks.fails.using(backend=alias, **once).enqueue()
                    run_due(raise_errors=True)
        self.order.refresh_from_db()
        self.assertEqual(self.order.paid, 2 * len(MODES))

    def test_a_rollback_takes_the_job_with_it(self):
        run_due()
        for alias in ("default", "after", "elsewhere", "boxed"):
            with self.subTest(alias):
                with self.assertRaises(ZeroDivisionError), transaction.atomic():
                    odd_tasks.echo.using(backend=alias).enqueue(1)
                    raise ZeroDivisionError
                self.assertEqual(run_due(), 0)

    def test_inside_of_captured_callbacks(self):
        run_due()
        for alias in MODES:
            with self.subTest(alias):
                seen = []
                with self.captureOnCommitCallbacks(execute=True):
                    with transaction.atomic():
                        transaction.on_commit(lambda: seen.append("mine"))  # noqa: B023
                        odd_tasks.echo.using(backend=alias).enqueue(1)
                        transaction.on_commit(lambda: seen.append("too"))  # noqa: B023
                    self.assertEqual(run_due(), 1)
                self.assertEqual(seen, ["mine", "too"])
                with self.captureOnCommitCallbacks(execute=True):
                    odd_tasks.echo.using(backend=alias).enqueue(2)
                self.assertEqual(run_due(), 1)

    def test_no_run_outlasts_its_test(self):
        run_due()
        with self.assertRaises(NotRunning):
            current()

    def test_a_job_that_this_test_leaves(self):
        run_due()
        for alias in MODES:
            odd_tasks.echo.using(backend=alias).enqueue("left")

    def test_no_job_of_the_test_before(self):
        self.assertEqual(run_due(), 2)


@override_settings(TASKS=TASKS)
class ModesWithCommits(TransactionTestCase):
    def test_jobs_of_each_mode_run_in_a_test(self):
        self.addCleanup(close_far)
        for alias in MODES:
            with self.subTest(alias):
                outside = odd_tasks.echo.using(backend=alias).enqueue("outside")
                with transaction.atomic():
                    backend = "default" if alias == "now" else alias  # SQLite has one writer
                    inside = odd_tasks.echo.using(backend=backend).enqueue("inside")
                self.assertEqual(run_due(), 2)
                for sent in (outside, inside):
                    sent.refresh()
                    self.assertEqual(sent.status, "SUCCESSFUL")
                self.assertEqual(run_due(), 0)
        for alias in ("default", "now", "after"):
            app_of(alias).sync.close()
