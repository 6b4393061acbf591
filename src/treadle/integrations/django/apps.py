"""The Django app "treadle"."""

from __future__ import annotations

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class TreadleConfig(AppConfig):
    """Connects the migration of Treadle's tables and the checks."""

    name = "treadle.integrations.django"
    label = "treadle"
    verbose_name = "Background jobs"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from treadle.integrations.django import checks, tables

        checks.register_all()
        post_migrate.connect(tables.after_migrate, sender=self, dispatch_uid="treadle.tables")
