"""Receivers that raise: they change nothing, and the worker continues."""

import django
from django.apps import AppConfig
from django.conf import settings

if django.VERSION >= (6, 0):
    from django.tasks.signals import task_finished, task_started
else:
    from django_tasks.signals import task_finished, task_started


def raises(sender, task_result, signal, **kwargs):
    with (settings.FOLDER / "receivers").open("a") as file:
        file.write(f"raised {task_result.status}\n")
    raise ZeroDivisionError("a receiver")


class ShopConfig(AppConfig):
    name = "shop"

    def ready(self):
        task_started.connect(raises)
        task_finished.connect(raises)
