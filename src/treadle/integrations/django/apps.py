"""The Django app "treadle"."""

from __future__ import annotations

import os

from django.apps import AppConfig
from django.db.backends.signals import connection_created
from django.db.models.signals import post_migrate

from treadle.core.command_lines import PROGRAM


class TreadleConfig(AppConfig):
    """Connects the migration of Treadle's tables, the checks, and what follows a database of tests."""

    name = "treadle.integrations.django"
    label = "treadle"
    verbose_name = "Background jobs"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from treadle.integrations.django import checks, database_app, tables

        checks.register_all()
        os.environ.setdefault(PROGRAM, _program(database_app.places()))
        connection_created.connect(database_app.follow, dispatch_uid="treadle.follow")
        post_migrate.connect(tables.after_migrate, sender=self, dispatch_uid="treadle.tables")
        post_migrate.connect(tables.for_copies, dispatch_uid="treadle.copies")


def _program(places: int) -> str:
    """The command line of this project. A message does not know which storage it is about."""
    return "python manage.py treadle" + (" --backend ALIAS" if places > 1 else "")
