"""The delayed protocol, as the commands serve it and deliver its jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec

from treadle.cli.options import Command
from treadle.cli.protocols import GuestProtocol, Handling
from treadle.contrib.delayed import options as delivery_options
from treadle.contrib.delayed.ids import id_of

if TYPE_CHECKING:
    from treadle.app import App
    from treadle.server import ProtocolRoutes


class Delayed(GuestProtocol):
    ports = (8080, 1)

    def worker_options(self, command: Command) -> Command:
        return delivery_options.delivering(command)

    def storage_url(self) -> str | None:
        return delivery_options.redis_url()

    def complete(self, options: dict[str, Any]) -> None:
        delivery_options.listening(options)

    @asynccontextmanager
    async def served(self, options: Mapping[str, Any]) -> AsyncIterator[Sequence[ProtocolRoutes]]:
        from treadle.contrib.delayed.app import delayed_routes

        yield [delayed_routes()] if "delayed" in options.get("protocols", ()) else []

    def handling(self, options: Mapping[str, Any]) -> Handling | None:
        delivery = delivery_options.delivery_of(options)
        return None if delivery is None else msgspec.to_builtins(delivery)

    def prepare(self, app: App, named: str | None, handling: Handling | None) -> None:
        from treadle.contrib.delayed.delivery import Delivery

        delivery_options.prepare(app, named, None if handling is None else msgspec.convert(handling, Delivery))

    def role(self, given: str | None) -> str | None:
        return delivery_options.role(given)

    def id_of(self, typed: str) -> str | None:
        return id_of(typed)


PROTOCOL: Final = Delayed()
