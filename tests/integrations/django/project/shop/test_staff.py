"""The dashboard behind the login of the staff, as docs/guides/dashboard.md shows it."""

from importlib import import_module

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth import get_user
from django.contrib.auth.models import User
from django.db import close_old_connections
from django.http import HttpRequest
from django.test import TransactionTestCase
from starlette.testclient import TestClient

from treadle.integrations.django import app
from treadle.server.dashboard import Who, asgi

sessions = import_module(settings.SESSION_ENGINE)


def user_of(key):
    close_old_connections()  # as at the beginning and at the end of a request
    try:
        asked = HttpRequest()
        asked.session = sessions.SessionStore(key)
        return get_user(asked)
    finally:
        close_old_connections()


async def who(request):
    user = await sync_to_async(user_of)(request.cookies.get(settings.SESSION_COOKIE_NAME))
    return Who(name=user.get_username(), scopes=("read", "operate")) if user.is_staff else None


class Staff(TransactionTestCase):
    def seen(self, path="/v1/jobs"):
        with TestClient(asgi(app, auth=who)) as browser:
            for name, cookie in self.client.cookies.items():
                browser.cookies.set(name, cookie.value)
            return browser.get(path).status_code

    def test_only_the_staff_sees_it(self):
        self.assertEqual(self.seen(), 401)
        self.client.force_login(User.objects.create_user("ada"))
        self.assertEqual(self.seen(), 401)
        staff = User.objects.create_user("bob", is_staff=True)
        self.client.force_login(staff)
        self.assertEqual(self.seen(), 200)
        staff.set_password("another")  # ends the sessions of the user
        staff.save()
        self.assertEqual(self.seen(), 401)
        self.client.force_login(staff)
        staff.is_active = False
        staff.save()
        self.assertEqual(self.seen(), 401)
