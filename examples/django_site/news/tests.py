from datetime import timedelta

from django.core import mail
from django.db import IntegrityError
from django.test import TestCase
from django.utils import timezone

from news import tasks
from news.models import Subscriber
from treadle.integrations.django.testing import run_due


class Site(TestCase):
    def test_a_subscriber_gets_a_mail(self):
        self.assertEqual(self.client.post("/subscribe", {"address": "ada@example.org"}).status_code, 202)
        self.assertEqual(run_due(), 1)
        self.assertEqual([each.to for each in mail.outbox], [["ada@example.org"]])

    def test_no_mail_without_a_subscriber(self):
        Subscriber.objects.create(address="ada@example.org")
        with self.assertRaises(IntegrityError):
            self.client.post("/subscribe", {"address": "ada@example.org"})

    def test_a_report(self):
        job = self.client.post("/reports").json()["job"]
        run_due()
        self.assertEqual(self.client.get(f"/reports/{job}").json()["value"], {"subscribers": 0})
        self.assertEqual(self.client.get("/reports/nothing").status_code, 404)

    def test_old_addresses_go(self):
        Subscriber.objects.create(address="new@example.org")
        old = Subscriber.objects.create(address="old@example.org")
        Subscriber.objects.filter(pk=old.pk).update(since=timezone.now() - timedelta(days=4))
        tasks.remove_unconfirmed.enqueue()
        run_due(raise_errors=True)
        self.assertEqual([each.address for each in Subscriber.objects.all()], ["new@example.org"])
