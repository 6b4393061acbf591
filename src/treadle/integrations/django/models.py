"""Models without tables, for the entries and the permissions of the admin pages."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class Job(models.Model):
    """A job. Its rows are Treadle's own, and their layout differs by storage; read them with `app.jobs`."""

    class Meta:
        managed = False
        verbose_name = "job"
        verbose_name_plural = "jobs"
        default_permissions = ("view", "change", "delete")
        permissions: ClassVar = [("view_payload", "Can see arguments, results and errors of jobs")]


class Schedule(models.Model):
    """A periodic task."""

    class Meta:
        managed = False
        verbose_name = "schedule"
        verbose_name_plural = "schedules"
        default_permissions = ("view", "change")
