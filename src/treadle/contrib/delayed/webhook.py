"""Delivers a delayed job as a POST to a URL: 2xx is success, 429 and 503 with Retry-After defer, others fail."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

import aiohttp
import yarl

from treadle.contrib.delayed.delivery_item import DeliveryFailed, delivery_item
from treadle.core import clock
from treadle.core.errors import BadOption
from treadle.core.redaction import origin, shown, target
from treadle.policy.retry import Defer

SHOWN: Final = 2_000  # bytes of an error response that are stored as the job's error
LATEST: Final = 86_400.0  # s; upper bound of Retry-After
SOONEST: Final = 1.0  # s; lower bound of Retry-After, so that 0 does not cause a busy loop


class Webhook:
    """POSTs payloads to one URL over persistent connections.

    Each attempt of a job has the same Idempotency-Key, its jobId, so that a receiver recognises a job whose 2xx
    response was lost.
    """

    def __init__(self, url: str, headers: Sequence[tuple[str, str]] = (), timeout: float = 30.0) -> None:
        try:
            self._origin = origin(url)  # for messages: path and query of a webhook often contain a secret
            yarl.URL(url)
        except ValueError:
            problem = f"expected a URL such as https://example.org/jobs, found {shown(url)!r}"
            raise BadOption("webhook", problem) from None
        self._url, self._headers, self._timeout = url, dict(headers), timeout
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, payload: Any) -> dict[str, int]:
        """Send one job -> the status. Raises Defer, DeliveryFailed."""
        item = delivery_item(payload)
        headers = {
            "Content-Type": "text/plain; charset=utf-8" if item.is_text else "application/json",
            "User-Agent": "treadle",
            **self._headers,
            "Idempotency-Key": item.name,
            "Treadle-Job-Id": item.name,
            "Treadle-Due-Time": item.due,
            "Treadle-Attempt": item.attempt,
        }
        if self._session is None:
            # No limit here: the worker's slots limit the connections, and no request waits for one.
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        limit = aiohttp.ClientTimeout(total=self._timeout)
        try:
            async with self._session.post(
                self._url, data=item.body, headers=headers, allow_redirects=False, timeout=limit
            ) as answer:
                return await self._judge(answer)
        except TimeoutError:
            raise DeliveryFailed(f"the webhook did not respond within {self._timeout:g} s") from None
        except aiohttp.InvalidURL:  # its text contains the whole URL
            raise DeliveryFailed(f"the webhook at {self._origin} cannot be called: aiohttp rejects its URL") from None
        except (aiohttp.ClientError, OSError) as error:
            raise DeliveryFailed(f"the webhook cannot be reached: {str(error) or type(error).__name__}") from None

    async def _judge(self, answer: aiohttp.ClientResponse) -> dict[str, int]:
        status = answer.status
        if 200 <= status < 300:
            return {"status": status}
        if status in (429, 503):
            wait = retry_after(answer.headers.get("Retry-After"), answer.headers.get("Date"))
            if wait is not None:
                raise Defer(min(max(wait, SOONEST), LATEST))
        if 300 <= status < 400:
            there = target(self._url, answer.headers.get("Location"))
            raise DeliveryFailed(f"the webhook answered {status}, a redirect to {there}, which Treadle does not follow")
        content = b""
        with suppress(aiohttp.ClientError, asyncio.TimeoutError):
            while len(content) < SHOWN and (piece := await answer.content.read(SHOWN - len(content))):
                content += piece
        reason = content.decode("utf-8", "replace").strip()
        raise DeliveryFailed(
            f"the webhook answered {status} {answer.reason or ''}".rstrip() + (reason and f": {reason}")
        )

    async def close(self) -> None:
        """Close the connections; the next delivery opens new ones."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()


def retry_after(text: str | None, date: str | None = None) -> float | None:
    """Seconds to wait, from a number or a date. A date is compared with the Date header, if there is one."""
    if text is None:
        return None
    if text.strip().isdecimal():
        return float(text)
    until, now = _moment(text), _moment(date)
    if until is None:
        return None
    return max(0.0, (until - (now or clock.moment(clock.wall()))).total_seconds())


def _moment(text: str | None) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text or "")
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
