"""The Django app "treadle"."""

from __future__ import annotations

from django.apps import AppConfig
from django.db.backends.signals import connection_created
from django.db.models.signals import post_migrate


class TreadleConfig(AppConfig):
    """Connects the migration of Treadle's tables, the checks, and what follows a database of tests."""

    name = "treadle.integrations.django"
    label = "treadle"
    verbose_name = "Background jobs"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from treadle.integrations.django import checks, database_app, tables

        checks.register_all()
        connection_created.connect(database_app.follow, dispatch_uid="treadle.follow")
        post_migrate.connect(tables.after_migrate, sender=self, dispatch_uid="treadle.tables")
        post_migrate.connect(tables.for_copies, dispatch_uid="treadle.copies")
