"""The dashboard behind the login and the permissions of the admin, as docs/guides/dashboard.md shows it."""

from importlib import import_module
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib import admin
from django.contrib.auth import get_user
from django.contrib.auth.models import Permission, User
from django.db import close_old_connections
from django.http import HttpRequest
from django.test import TransactionTestCase
from starlette.testclient import TestClient

from shop import tasks
from treadle.integrations.django import app
from treadle.server.dashboard import Who, asgi

READ = ("treadle.view_job", "treadle.view_schedule")
OPERATE = ("treadle.change_job", "treadle.delete_job", "treadle.change_schedule")
sessions = import_module(settings.SESSION_ENGINE)


def user_of(key):
    close_old_connections()  # as at the beginning and at the end of a request
    try:
        asked: Any = HttpRequest()
        asked.session = sessions.SessionStore(key)
        user: Any = get_user(asked)
        asked.user = user
        if not (admin.site.has_permission(asked) and user.has_perms(READ)):
            return None
        scopes = ("read", "operate") if user.has_perms(OPERATE) else ("read",)
        return Who(name=user.get_username(), scopes=scopes, payloads=user.has_perm("treadle.view_payload"))
    finally:
        close_old_connections()


async def who(request):
    return await sync_to_async(user_of)(request.cookies.get(settings.SESSION_COOKIE_NAME))


class Staff(TransactionTestCase):
    def answer(self, path="/v1/jobs", method="GET"):
        with TestClient(asgi(app, auth=who)) as browser:
            for name, cookie in self.client.cookies.items():
                browser.cookies.set(name, cookie.value)
            return browser.request(method, path, headers={"Sec-Fetch-Site": "same-origin"})

    def seen(self):
        return self.answer().status_code

    def grant(self, user, *names):
        user.user_permissions.add(*Permission.objects.filter(codename__in=[name.split(".")[1] for name in names]))

    def test_the_permissions_of_the_admin_count(self):
        id = tasks.pay.enqueue(order="the private boat").id
        cancel = f"/v1/jobs/{id}/cancel", "POST"
        staff = User.objects.create_user("bob", is_staff=True)
        self.client.force_login(staff)
        self.assertEqual(self.seen(), 401)
        self.grant(staff, *READ)
        self.assertNotIn("private boat", self.answer(f"/v1/jobs/{id}").text)
        self.assertEqual(self.answer(*cancel).status_code, 403)
        self.grant(staff, "treadle.view_payload", *OPERATE[1:])
        self.assertIn("private boat", self.answer(f"/v1/jobs/{id}").text)
        self.assertEqual(self.answer(*cancel).status_code, 403)
        self.grant(staff, *OPERATE)
        self.assertEqual(self.answer(*cancel).status_code, 200)

    def test_only_the_staff_sees_it(self):
        self.assertEqual(self.seen(), 401)
        ada = User.objects.create_user("ada")
        self.grant(ada, *READ)
        self.client.force_login(ada)
        self.assertEqual(self.seen(), 401)
        staff = User.objects.create_superuser("bob")
        self.client.force_login(staff)
        self.assertEqual(self.seen(), 200)
        staff.set_password("another")  # ends the sessions of the user
        staff.save()
        self.assertEqual(self.seen(), 401)
        self.client.force_login(staff)
        staff.is_active = False
        staff.save()
        self.assertEqual(self.seen(), 401)
