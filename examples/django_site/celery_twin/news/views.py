from django.db import transaction
from django.http import JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from news import tasks
from news.models import Subscriber


@csrf_exempt
@require_POST
@transaction.atomic
def subscribe(request):
    subscriber = Subscriber.objects.create(address=request.POST["address"])
    # If the process dies between the commit and this call, the mail is never sent.
    transaction.on_commit(lambda: tasks.welcome.delay(subscriber.pk))
    return JsonResponse({}, status=202)


@csrf_exempt
@require_POST
def start_report(request):
    return JsonResponse({"job": tasks.report.delay().id}, status=202)


def report(request, id):
    found = tasks.app.backend.get_task_meta(id)  # an unknown id is PENDING, like a job that waits
    value = found["result"] if found["status"] == "SUCCESS" else None
    return JsonResponse({"status": found["status"], "value": value})
