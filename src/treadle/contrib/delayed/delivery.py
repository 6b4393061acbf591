"""Delivers delayed jobs without a Python function of the user: to a webhook, a command, or stdout."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct

from treadle.contrib.delayed.delivery_item import delivery_item
from treadle.contrib.delayed.ids import name_of
from treadle.core import defaults
from treadle.core.errors import BadOption
from treadle.execution.context import current

if TYPE_CHECKING:
    from treadle.app import App

TIMEOUT = 30.0  # s for one delivery


class Delivery(Struct, frozen=True, kw_only=True):
    """The way to deliver delayed jobs.

    how          "webhook": POST to a URL; "command": run a program for each job; "print": a line of JSON on stdout
    target       the URL, or the program and its arguments
    headers      of each request
    timeout      seconds for one delivery in all
    environment  names of variables that a command gets although they may hold credentials, such as PGPASSWORD
    """

    how: Literal["webhook", "command", "print"] = "print"
    target: tuple[str, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    timeout: float = TIMEOUT
    environment: tuple[str, ...] = ()


def deliver(app: App, delivery: Delivery) -> None:
    """Make `delivery` the handler of the app's delayed jobs. Raises BadTask if it has one, BadOption."""
    take: Callable[[Any], Awaitable[Any]]
    if not 0 < delivery.timeout < float("inf"):
        raise BadOption("timeout", f"expected more than 0 s, found {delivery.timeout!r}")
    if delivery.how == "webhook":
        from treadle.contrib.delayed.webhook import Webhook

        [url] = delivery.target
        take = webhook = Webhook(url, delivery.headers, delivery.timeout)
        app.on("worker.stopped")(lambda _: webhook.close())
    elif delivery.how == "command":
        from treadle.contrib.delayed.command import Command

        take = Command(delivery.target, delivery.timeout, delivery.environment)
    else:
        take = _print

    async def handle(payload: Any) -> Any:
        return await take(payload)

    app.delayed_handler(handle)


async def _print(payload: Any) -> None:
    here = current()
    line = {
        "jobId": name_of(here.id),
        "payload": payload,
        "dueTime": float(delivery_item(payload).due),
        "pickupTime": here.record.started_at,
        "worker": here.worker,
    }
    sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
    sys.stdout.flush()


def has_handler(app: App) -> bool:
    """Whether the app has its own function for delayed jobs."""
    return defaults.DELAYED_TASK in app.tasks
