"""The tasks of the site."""

from datetime import timedelta

from celery_app import app
from django.core.mail import send_mail
from django.utils import timezone

from news.models import Subscriber

RETRIES = {"autoretry_for": (Exception,), "retry_backoff": 10, "max_retries": 7}


@app.task(time_limit=30, **RETRIES)
def welcome(subscriber):
    send_mail("Welcome", "Confirm your address, please.", None, [Subscriber.objects.get(pk=subscriber).address])


@app.task(**RETRIES)
def report():
    return {"subscribers": Subscriber.objects.count()}


@app.task(**RETRIES)
def remove_unconfirmed():
    old = Subscriber.objects.filter(confirmed=False, since__lt=timezone.now() - timedelta(days=3))
    return old.delete()[0]
