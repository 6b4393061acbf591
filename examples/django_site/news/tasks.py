"""The tasks of the site. Run them: `python manage.py treadle worker`."""

from datetime import timedelta

from django.core.mail import send_mail
from django.utils import timezone

from news.models import Subscriber
from treadle import Retry

try:
    from django.tasks import task
except ImportError:  # Django 5.2
    from django_tasks import task


@task(queue_name="mail")
def welcome(subscriber):
    send_mail("Welcome", "Confirm your address, please.", None, [Subscriber.objects.get(pk=subscriber).address])


@task
async def report():
    return {"subscribers": await Subscriber.objects.acount()}


@task
def remove_unconfirmed():
    old = Subscriber.objects.filter(confirmed=False, since__lt=timezone.now() - timedelta(days=3))
    return old.delete()[0]


patient = welcome.using(retry=Retry(attempts=8, base=10), timeout=30)
