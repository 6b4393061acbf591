"""The Django project of these tests: thirty lines, on the database that the environment names."""

import os
from pathlib import Path
from urllib.parse import urlsplit

import django

FOLDER = Path(os.environ["TEST_PROJECT_FOLDER"])
SECRET_KEY = "for tests"
DEBUG = False
USE_TZ = True
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "treadle.integrations.django",
    "shop",
    *([] if django.VERSION >= (6, 0) else ["django_tasks"]),
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
STATIC_URL = "/static/"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
_server = urlsplit(os.environ.get("TEST_PROJECT_DATABASE", ""))
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _server.path[1:],
        "USER": _server.username,
        "HOST": _server.hostname,
        "PORT": _server.port,
    }
    if _server.scheme
    else {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": FOLDER / "shop.db",
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "init_command": "PRAGMA journal_mode=WAL"},
        "TEST": {"NAME": os.environ.get("TEST_PROJECT_TESTS") or FOLDER / "test.db"},
    }
}
TASKS = {
    "default": {
        "BACKEND": "treadle.integrations.django.TreadleBackend",
        "QUEUES": ["default", "mail"],
    },
    "now": {"BACKEND": "treadle.integrations.django.TreadleBackend", "OPTIONS": {"commit": "now"}},
    "after": {"BACKEND": "treadle.integrations.django.TreadleBackend", "OPTIONS": {"commit": "after"}},
    "elsewhere": {
        "BACKEND": "treadle.integrations.django.TreadleBackend",
        "OPTIONS": {"url": f"sqlite:///{FOLDER / 'elsewhere.db'}"},
    },
    "boxed": {
        "BACKEND": "treadle.integrations.django.TreadleBackend",
        "OPTIONS": {"url": f"sqlite:///{FOLDER / 'boxed.db'}", "commit": "outbox"},
    },
    "plain": {
        "BACKEND": f"{'django.tasks' if django.VERSION >= (6, 0) else 'django_tasks'}.backends.dummy.DummyBackend"
    },
}
if os.environ.get("TEST_PROJECT_TESTS"):
    del TASKS["boxed"]  # an outbox needs a file
TREADLE_SCHEDULES = {"nightly": {"task": "shop.tasks.report", "cron": "0 3 * * *"}}
LOGGING_CONFIG = None
