"""Believes the X-Forwarded headers of trusted proxies: client address, scheme, and the prefix of the server's paths.

Anyone can send these headers, so only connections from the addresses of Settings.proxies may use them.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Any, Final

from starlette.types import ASGIApp, Receive, Scope, Send

from treadle.core.errors import BadOption
from treadle.server.errors import Refused, refusal

PREFIX: Final = re.compile(r"(/[A-Za-z0-9._~-]+){0,16}/?", re.ASCII)
LONGEST: Final = 256  # characters of a prefix
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """The networks of these addresses, such as 10.0.0.5 or 10.0.0.0/8. Raises BadOption."""
    ranges = []
    for text in texts:
        try:
            ranges.append(ipaddress.ip_network(text))
        except ValueError:
            message = f"expected an address or a network such as 10.0.0.0/8, found {text!r}"
            raise BadOption("proxies", message) from None
    return tuple(ranges)


class Proxied:
    """An ASGI layer that applies the headers of trusted proxies to the scope."""

    def __init__(self, app: ASGIApp, proxies: Iterable[str]) -> None:
        self._app, self._networks = app, networks(proxies)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = scope.get("client")
        if scope["type"] == "http" and client is not None and self._trusts(client[0]):
            try:
                scope = {**scope, **self._changes(scope)}
            except Refused as error:
                await refusal(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _trusts(self, address: str) -> bool:
        try:
            ip = ipaddress.ip_address(address)
        except ValueError:
            return False
        mapped = getattr(ip, "ipv4_mapped", None) or ip
        return any(mapped in network for network in self._networks)

    def _changes(self, scope: Scope) -> dict[str, Any]:
        """The parts of the scope that the headers change. Raises Refused (400) for an invalid prefix."""
        heads = {name: bytes(value).decode("latin-1") for name, value in scope["headers"] if b"x-forwarded" in name}
        changes: dict[str, Any] = {}
        scheme = heads.get(b"x-forwarded-proto", "").strip().lower()
        if scheme in ("http", "https"):
            changes["scheme"] = scheme
        sender = self._sender(heads.get(b"x-forwarded-for", ""))
        if sender is not None:
            changes["client"] = (sender, 0)
        prefix = heads.get(b"x-forwarded-prefix", "")
        if len(prefix) > LONGEST or not PREFIX.fullmatch(prefix) or {".", ".."} & set(prefix.split("/")):
            raise Refused(400, "malformed", "X-Forwarded-Prefix: expected a path such as /ops/jobs")
        if prefix := prefix.rstrip("/"):  # the proxy has removed it from the path
            changes["root_path"] = prefix + scope.get("root_path", "")
            changes["path"] = prefix + scope["path"]
            if scope.get("raw_path"):
                changes["raw_path"] = prefix.encode() + scope["raw_path"]
        return changes

    def _sender(self, header: str) -> str | None:
        """The last address in X-Forwarded-For that is not a trusted proxy: the client may have invented the addresses
        before it."""
        for address in reversed([part.strip() for part in header.split(",") if part.strip()]):
            if not self._trusts(address):
                try:
                    return str(ipaddress.ip_address(address.partition("%")[0]))
                except ValueError:
                    return None
        return None
