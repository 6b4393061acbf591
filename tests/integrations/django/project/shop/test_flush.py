"""After a TransactionTestCase Django empties its tables, and Treadle empties its own."""

from django.core.management import call_command
from django.test import TransactionTestCase

from shop import odd_tasks, tasks
from treadle.integrations.django import app
from treadle.integrations.django.database_app import store_of
from treadle.integrations.django.reading import in_outbox


class Flush(TransactionTestCase):
    def tearDown(self):
        app.sync.close()

    def check_is_empty(self):
        """Also the counts, the keys and the ids."""
        self.assertEqual(app.sync.jobs.list(count=True).total, 0)
        self.assertEqual(app.sync.queues.stats().counts, ())
        self.assertTrue(tasks.note.options(id="order-1", key="k").enqueue_sync(1).created)
        self.assertEqual(app.sync.jobs.list(count=True).total, 1)

    test_one = test_another = check_is_empty

    def test_a_flush_while_the_app_is_open(self):
        self.check_is_empty()
        call_command("flush", verbosity=0, interactive=False)
        self.check_is_empty()

    def test_a_flush_empties_the_outbox(self):
        sent = odd_tasks.echo.using(backend="boxed").enqueue(1)
        call_command("flush", verbosity=0, interactive=False)
        self.assertIsNone(in_outbox(store_of("boxed"), sent.id))

    def test_a_migration_keeps_the_jobs(self):
        tasks.note.enqueue_sync(1)
        call_command("migrate", verbosity=0)
        self.assertEqual(app.sync.jobs.list(count=True).total, 1)
