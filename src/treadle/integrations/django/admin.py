"""Admin pages of jobs and periodic tasks, under Django's permissions.

    view_job        see the list and single jobs, without what users put into them
    view_payload    also arguments, results, errors and headers
    change_job      retry, cancel, run now
    delete_job      delete ended jobs
    view_schedule, change_schedule   see periodic tasks; pause, resume and trigger them

The pages read the storage through Treadle's own calls, and close it after each request.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import django
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.forms import Media
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse

from treadle.app.core import AppCore
from treadle.core.errors import BadOption, StorageError, TreadleError, UnknownJob
from treadle.integrations.django import admin_pages
from treadle.integrations.django.database_app import first_alias, store_of
from treadle.integrations.django.loading import prepare
from treadle.integrations.django.models import Job, Schedule
from treadle.integrations.django.reading import copy_of_test, in_test_case

MOST: Final = 1_000  # jobs that one request may change
CONFIRMED: Final = frozenset({"cancel", "delete"})  # acts with a page that asks once more
NEW_LAYOUT: Final = django.VERSION >= (6, 1)  # the admin of 6.1 has other breadcrumbs, and the filters first


class Page(admin.ModelAdmin):
    """The base of both pages. They show no rows of a model, and have no page to add one."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm(f"treadle.delete_{self.opts.model_name}")

    @property
    def media(self) -> Media:
        return Media(css={"all": ["treadle/admin.css"]}, js=["admin/js/actions.js"])

    def run(self, make: Callable[[AppCore], Coroutine[Any, Any, Any]], changes: bool = False) -> Any:
        """Run some calls with the storage open. With several Treadle backends, the pages show the first one. Raises
        StorageError for changes in a `TestCase`."""
        store = store_of(first_alias())
        if not in_test_case(store) and (changes or store.memory is None):
            with store.opened() as app:
                return app.sync.call(make(app._core))
        if changes:
            raise StorageError("the admin changes committed jobs, and a TestCase commits none: use TransactionTestCase")
        copy = copy_of_test(store)
        try:
            return copy.sync.call(make(copy._core))
        finally:
            copy.sync.close()

    def shown(self, request: HttpRequest, template: str, **context: Any) -> HttpResponse:
        return TemplateResponse(
            request,
            template,
            {
                **self.admin_site.each_context(request),
                "opts": self.opts,
                "media": self.media,
                "new_layout": NEW_LAYOUT,
                **context,
            },
        )

    def list_url(self) -> str:
        return reverse(f"{self.admin_site.name}:treadle_{self.opts.model_name}_changelist")

    def by(self, request: HttpRequest) -> str:
        """The name in Treadle's audit log."""
        return f"{request.user.get_username()} (Django admin)"

    def back(self, request: HttpRequest, to: str | None = None) -> HttpResponse:
        query = request.GET.urlencode()
        return HttpResponseRedirect(to or (self.list_url() + (f"?{query}" if query else "")))

    def failed(self, request: HttpRequest, error: TreadleError) -> HttpResponse:
        self.message_user(request, f"{error}", messages.ERROR)
        return self.shown(request, "admin/treadle/unavailable.html", title=self.opts.verbose_name_plural.capitalize())


@admin.register(Job)
class JobAdmin(Page):
    """The list of jobs, and the page of one."""

    def get_urls(self) -> list[Any]:
        wrap = self.admin_site.admin_view
        return [
            path("", wrap(self.changelist_view), name="treadle_job_changelist"),
            path("<str:object_id>/change/", wrap(self.change_view), name="treadle_job_change"),
        ]

    def sees_payloads(self, request: HttpRequest) -> bool:
        return request.user.has_perm("treadle.view_payload")

    def verbs(self, request: HttpRequest) -> list[tuple[str, str]]:
        """The acts that this user may do."""
        may = {"change": self.has_change_permission(request), "delete": self.has_delete_permission(request)}
        return [(verb, text) for verb, (text, _, permission) in admin_pages.VERBS.items() if may[permission]]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        payloads = self.sees_payloads(request)
        try:
            if request.method == "POST":
                ids = list(dict.fromkeys(request.POST.getlist("_selected_action")))
                return self.acted(request, ids, self.list_url())
            page = self.run(lambda core: admin_pages.job_list(core, request.GET.dict(), payloads))
        except BadOption:
            return HttpResponseRedirect(self.list_url())
        except TreadleError as error:
            return self.failed(request, error)
        return self.shown(
            request,
            "admin/treadle/job_list.html",
            title="Select job to view",
            page=page,
            verbs=self.verbs(request),
            query=request.GET.get("q", ""),
            payloads=payloads,
        )

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        payloads = self.sees_payloads(request)
        try:
            if request.method == "POST":
                return self.acted(request, [object_id], request.get_full_path())
            page = self.run(lambda core: admin_pages.job_page(core, object_id, payloads))
        except UnknownJob as error:
            raise Http404(str(error)) from error
        except TreadleError as error:
            return self.failed(request, error)
        allowed = dict(self.verbs(request))
        verbs = [(verb, text) for verb, text in page.verbs if verb in allowed]
        return self.shown(
            request,
            "admin/treadle/job.html",
            title=page.row.task,
            subtitle=page.row.id,
            page=page,
            verbs=verbs,
            payloads=payloads,
        )

    def acted(self, request: HttpRequest, ids: Sequence[str], here: str) -> HttpResponse:
        """Carry out the act of the form, or show the page that asks for confirmation. Raises StorageError."""
        verb = request.POST.get("action", "")
        if verb not in admin_pages.VERBS:
            self.message_user(request, "No action selected.", messages.WARNING)
            return self.back(request, here)
        if verb not in dict(self.verbs(request)):
            raise PermissionDenied
        if not ids or len(ids) > MOST:
            self.message_user(request, f"Select 1 to {MOST:,} jobs in order to change them.", messages.WARNING)
            return self.back(request, here)
        if verb in CONFIRMED and "confirmed" not in request.POST:
            return self.shown(
                request,
                "admin/treadle/confirm.html",
                title="Are you sure?",
                verb=verb,
                ids=ids,
                here=here,
                text=admin_pages.VERBS[verb][0],
            )
        done = self.run(lambda core: admin_pages.act(core, verb, ids, self.by(request)), changes=True)
        participle = {"retry": "retried", "cancel": "cancelled", "run_now": "queued", "delete": "deleted"}[verb]
        text = f"{done:,} {'job was' if done == 1 else 'jobs were'} {participle}."
        if done < len(ids):
            text += f" {len(ids) - done:,} could not be {participle} in their state."
        self.message_user(request, text, messages.SUCCESS if done else messages.WARNING)
        return self.back(request, self.list_url() if verb == "delete" else here)


@admin.register(Schedule)
class ScheduleAdmin(Page):
    """The list of periodic tasks."""

    def get_urls(self) -> list[Any]:
        return [path("", self.admin_site.admin_view(self.changelist_view), name="treadle_schedule_changelist")]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            if request.method == "POST":
                return self.acted(request)
            schedules = self.run(lambda core: core.schedules.list())
        except TreadleError as error:
            return self.failed(request, error)
        return self.shown(
            request,
            "admin/treadle/schedule_list.html",
            title="Select schedule to change",
            schedules=schedules,
            verbs=SCHEDULE_VERBS if self.has_change_permission(request) else [],
        )

    def acted(self, request: HttpRequest) -> HttpResponse:
        verb, names = request.POST.get("action", ""), request.POST.getlist("_selected_action")
        if not self.has_change_permission(request):
            raise PermissionDenied
        if verb not in dict(SCHEDULE_VERBS) or not names:
            self.message_user(request, "Select an action and at least one schedule.", messages.WARNING)
            return self.back(request)
        if verb == "trigger":
            prepare(first_alias())  # the code of the project makes the jobs of its schedules
        done = self.run(lambda core: admin_pages.act_on_schedules(core, verb, names, self.by(request)), changes=True)
        participle = {"pause": "paused", "resume": "resumed", "trigger": "triggered: one job each was enqueued"}[verb]
        self.message_user(request, f"{done} {'schedule' if done == 1 else 'schedules'} {participle}.", messages.SUCCESS)
        return self.back(request)


SCHEDULE_VERBS: Final = [("pause", "Pause"), ("resume", "Resume"), ("trigger", "Run once now")]
