"""Tests of a Django site that enqueues: the jobs of a `TestCase` run inside its own transaction.

    python examples/testing_django.py

A real site has its settings, its models and its views elsewhere; the class at the end is what its tests look like.
"""

from __future__ import annotations

import unittest
from typing import ClassVar

import django
from django.conf import settings

settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    USE_TZ=True,
)
django.setup()

from django.db import connection, models, transaction  # noqa: E402 - they need the settings
from django.test import TestCase  # noqa: E402

from treadle import App  # noqa: E402

app = App()


class Photo(models.Model):
    name = models.CharField(max_length=80)
    thumbnails = models.IntegerField(default=0)

    class Meta:
        app_label = "gallery"


@app.task
def make_thumbnail(photo: int) -> None:
    """A plain function: in a test it runs in the thread that calls `drain`, on the connection of the test."""
    Photo.objects.filter(pk=photo).update(thumbnails=models.F("thumbnails") + 1)


def upload(name: str) -> Photo:
    """A view: the photo and its job are stored together, or not at all."""
    with transaction.atomic():
        photo = Photo.objects.create(name=name)
        make_thumbnail.options(within=connection).enqueue_sync(photo.pk)
        if not name.endswith(".jpg"):
            raise ValueError(f"{name!r} is no photo")
    return photo


class Uploads(TestCase):
    databases: ClassVar[set[str]] = {"default"}

    def test_an_upload_gets_its_thumbnail(self) -> None:
        with app.sync.testing() as t:
            photo = upload("sea.jpg")
            t.assert_enqueued(make_thumbnail, photo.pk)
            assert t.drain(raise_errors=True) == 1
            photo.refresh_from_db()  # the job reads the row, and the test reads what the job has written
            assert photo.thumbnails == 1

    def test_an_upload_that_is_rolled_back_enqueues_nothing(self) -> None:
        with app.sync.testing() as t:
            with self.assertRaisesMessage(ValueError, "no photo"):
                upload("sea.txt")
            t.assert_not_enqueued(make_thumbnail)
            assert not Photo.objects.exists()


def setUpModule() -> None:
    with connection.schema_editor() as schema:  # `manage.py test` makes the tables by itself
        schema.create_model(Photo)


if __name__ == "__main__":
    unittest.main()
