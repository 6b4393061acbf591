from django.db import transaction
from django.http import Http404, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from news import tasks
from news.models import Subscriber


@csrf_exempt
@require_POST
@transaction.atomic
def subscribe(request):
    subscriber = Subscriber.objects.create(address=request.POST["address"])
    sent = tasks.patient.enqueue(subscriber.pk)
    return JsonResponse({"job": sent.id}, status=202)


@csrf_exempt
@require_POST
def start_report(request):
    return JsonResponse({"job": tasks.report.enqueue().id}, status=202)


def report(request, id):
    try:
        found = tasks.report.get_result(id)
    except Exception as error:
        raise Http404(str(error)) from error
    return JsonResponse({"status": found.status, "value": found.return_value if found.status == "SUCCESSFUL" else None})
