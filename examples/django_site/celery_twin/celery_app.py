"""The Celery app. Run it: `celery -A celery_app worker -Q celery,mail`, and one `celery -A celery_app beat`."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
app = Celery("site")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
