"""A shop whose background work runs on Celery: the program that `treadle from celery` is tried on."""

from .celery import app as celery_app

__all__ = ("celery_app",)
