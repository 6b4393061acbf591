"""Mails: retries, priorities, a rate limit."""

from celery import shared_task

from .journal import already, record


class SmtpBusy(Exception):
    """The mail server asks to come again."""


# The mail server loses connections now and then.
@shared_task(
    autoretry_for=(ConnectionError,),
    retry_backoff=True,
    retry_backoff_max=4,
    retry_jitter=False,
    max_retries=5,
)
def send_mail(to, subject="hello"):
    if subject == "flaky" and not already("mail-refused", to):
        record("mail-refused", to)
        raise ConnectionError("reset by peer")
    record("mail", to, subject)
    return len(to)


@shared_task(bind=True, max_retries=3, default_retry_delay=1)
def send_invoice(self, order):
    try:
        if self.request.retries == 0:
            raise SmtpBusy(order)
        record("invoice", order, self.request.retries)
    except SmtpBusy as exc:
        raise self.retry(exc=exc, countdown=2**self.request.retries)


@shared_task(rate_limit="100/s", ignore_result=True)
def send_newsletter(to):
    record("newsletter", to)


@shared_task
def remind(to):
    record("remind", to)


@shared_task(bind=True)
def track(self, to):
    self.update_state(state="PROGRESS", meta={"to": to})
    record("track", to)
