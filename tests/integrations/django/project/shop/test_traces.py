"""A trace through a task of Django: the view, the job that is stored in its transaction, and the run."""

from django.db import transaction
from django.test import TestCase
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from shop import tasks
from shop.models import Order
from treadle.integrations.django import app
from treadle.integrations.django.testing import run_due
from treadle.integrations.otel import Tracing


class Traces(TestCase):
    def setUp(self):
        self.exporter, self.provider = InMemorySpanExporter(), TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracing = app.middleware(Tracing(tracer_provider=self.provider))
        self.addCleanup(app._core.layers.remove, self.tracing)

    def test_a_view_its_job_and_the_run(self):
        order = Order.objects.create(what="a boat")
        with self.provider.get_tracer("test").start_as_current_span("view"), transaction.atomic():
            tasks.pay.enqueue(order.pk)
            tasks.apay.enqueue(order.pk)
        self.assertEqual(run_due(), 2)
        spans = {span.context.span_id: span for span in self.exporter.get_finished_spans()}
        self.assertEqual(len({span.context.trace_id for span in spans.values()}), 1)
        parents = sorted((span.name, spans[span.parent.span_id].name) for span in spans.values() if span.parent)
        sent = "enqueue default"
        self.assertEqual(parents, [(sent, "view")] * 2 + [("run shop.tasks.apay", sent), ("run shop.tasks.pay", sent)])
