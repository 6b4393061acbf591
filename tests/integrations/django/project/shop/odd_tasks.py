"""Tasks that the tests of the backend use; not among the tasks of the shop."""

import json

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


class Outer:
    class Inner(Exception):
        pass


class Silent(Exception):
    def __str__(self):
        raise ZeroDivisionError


@task
def raises(kind):
    """Exceptions whose text or class misleads."""
    if kind == "lines":
        raise ValueError("no\nantigravity.fly: x\nKeyError: y")
    if kind == "nested":
        try:
            raise KeyError("first")
        except KeyError:
            raise Outer.Inner("second") from None
    if kind == "chained":
        try:
            raise KeyError("first")
        except KeyError:
            raise Outer.Inner("second")  # noqa: B904
    if kind == "local":
        raise type("Local", (Exception,), {"__qualname__": "raises.<locals>.Local"})("x" * 100_000)
    if kind == "silent":
        raise Silent
    if kind == "group":
        raise ExceptionGroup("both", [ValueError("a\nb"), KeyError("c")])
    raise json.JSONDecodeError("no", "", 0)


@task(takes_context=True)
def attempts(context):
    return context.attempt


@task(priority=5, queue_name="mail")
def urgent():
    return "done"


REQUIRED = {
    "priority": 0,
    "queue_name": "default",
    "run_after": None,
    "backend": "default",
}  # Django 6.0 has no defaults
once = {"retry": Retry(attempts=1)}
if django.VERSION < (6, 0) or django.VERSION >= (6, 1):

    @task(retry=Retry(attempts=2, base=0), timeout=30, labels=["decorated"])
    def decorated():
        raise ValueError("twice")
