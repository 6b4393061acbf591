"""The settings of the site."""

import os
import sys

SECRET_KEY = os.environ.get("SECRET_KEY", "only for trying it")
DEBUG = True
USE_TZ = True
ROOT_URLCONF = "urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DEFAULT_FROM_EMAIL = "news@example.org"
EMAIL_BACKEND = "django.core.mail.backends.console.EmailBackend"
STATIC_URL = "static/"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "news",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SITE_DB", "site.db"),
    }
}
CELERY_BROKER_URL = CELERY_RESULT_BACKEND = os.environ.get("REDIS_URL", "redis://localhost")
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TASK_ACKS_LATE = True  # without these two, the jobs of a worker that dies are lost
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_TASK_TRACK_STARTED = True
CELERY_TASK_ROUTES = {"news.tasks.welcome": {"queue": "mail"}}
CELERY_TASK_ALWAYS_EAGER = "test" in sys.argv
CELERY_TASK_STORE_EAGER_RESULT = False
CELERY_TIMEZONE = "UTC"
CELERY_BEAT_SCHEDULE = {"remove-unconfirmed": {"task": "news.tasks.remove_unconfirmed", "schedule": 3600}}
