"""Tasks that the tests of the backend use; not among the tasks of the shop."""

import django

from treadle import Retry

if django.VERSION >= (6, 0):
    from django.tasks import task
else:
    from django_tasks import task


@task
def echo(*args, **kwargs):
    return [args, kwargs]


@task
async def aecho(*args, **kwargs):
    return [args, kwargs]


@task
def unstorable():
    return object()


@task
def exits():
    raise SystemExit("no")


@task
def deep():
    def inner():
        raise ValueError("This Task failed due to ValueError")

    inner()


@task(takes_context=True)
def attempts(context):
    return context.attempt


@task(priority=5, queue_name="mail")
def urgent():
    return "done"


once = {"retry": Retry(attempts=1)}
if django.VERSION < (6, 0) or django.VERSION >= (6, 1):

    @task(retry=Retry(attempts=2, base=0), timeout=30, labels=["decorated"])
    def decorated():
        raise ValueError("twice")
