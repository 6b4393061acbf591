"""The settings of the site."""

import os

import django

SECRET_KEY = os.environ.get("SECRET_KEY", "only for trying it")
DEBUG = True
USE_TZ = True
ROOT_URLCONF = "urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DEFAULT_FROM_EMAIL = "news@example.org"
EMAIL_BACKEND = "django.core.mail.backends.console.EmailBackend"
STATIC_URL = "static/"
BACKPORT = [] if django.VERSION >= (6, 0) else ["django_tasks"]
INSTALLED_APPS = [
    *BACKPORT,
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "treadle.integrations.django",
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
        "OPTIONS": {"transaction_mode": "IMMEDIATE"},
    }
}
TASKS = {"default": {"BACKEND": "treadle.integrations.django.TreadleBackend", "QUEUES": ["default", "mail"]}}
TREADLE_SCHEDULES = {"remove-unconfirmed": {"task": "news.tasks.remove_unconfirmed", "every": 3600}}
