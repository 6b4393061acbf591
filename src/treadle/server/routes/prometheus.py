"""The operation for Prometheus and programs that read its format: what is stored, in numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace
from starlette.responses import Response

from treadle.server.auth import rights
from treadle.server.auth.tokens import Token
from treadle.server.errors import Refused
from treadle.server.kept_answer import KeptAnswers
from treadle.server.operation import Call, Operation
from treadle.server.prometheus import MISSING, Names, Scrape, StoredReader, stored_samples, written
from treadle.storage import messages

if TYPE_CHECKING:
    from treadle.app.core import AppCore
    from treadle.server.prometheus.exposition import Exposition

KEPT: Final = 1.0  # s for which a text is kept: writing one of 300 tasks takes 20 ms of the event loop


class PrometheusRoutes:
    """The metrics of one storage. The counts of workers are not here: their supervisors serve those."""

    def __init__(self, core: AppCore) -> None:
        self._reader, self._names = StoredReader(core), Names()
        self._texts = KeptAnswers["Exposition"](KEPT)

    def operations(self) -> list[Operation]:
        return [
            Operation(
                method="GET",
                path="/metrics",
                name="get_prometheus_metrics",
                run=self.metrics,
                tag="metrics",
                scope="read",
                summary="Show what is stored as metrics for Prometheus, in its text format or as OpenMetrics",
                media="text/plain",
                at_once=True,
                others=(501,),
            )
        ]

    async def metrics(self, call: Call[None, messages.Nothing]) -> Response:
        try:
            from treadle.server.prometheus.exposition import OPENMETRICS, is_openmetrics
        except ImportError as error:
            raise Refused(501, "not_installed", f"{MISSING} ({error})") from None
        token = call.token
        accept = OPENMETRICS if is_openmetrics(call.request.headers.get("accept", "")) else ""
        text = await self._texts.get((token.queues, accept), lambda: self._text(token, accept))
        return Response(text.body, media_type=None, headers={"Content-Type": text.content_type})

    async def _text(self, token: Token, accept: str) -> Exposition:
        return written(stored_samples(_seen(token, await self._reader.scrape()), self._names), accept)


def _seen(token: Token, scrape: Scrape) -> Scrape:
    """The scrape of a bound token: its queues, without schedules and the outbox."""
    reading = scrape.reading
    if reading is None or not token.queues:
        return scrape
    seen = replace(
        reading,
        stats=rights.seen(token, reading.stats),
        schedules=None,
        outbox=None,
        outbox_up=None,
        queues=[queue for queue in reading.queues if token.sees(queue)],
    )
    return replace(scrape, reading=seen)
