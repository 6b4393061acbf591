"""Refuses requests that browsers send for pages of other sites, and requests for another host name.

Programs do not send Origin or Sec-Fetch-Site, and a page cannot omit or change them. A page whose own name resolves to
this machine (DNS rebinding) has the same origin for its browser; only the Host header distinguishes it.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Final

from starlette.types import Scope

from treadle.core.errors import BadOption
from treadle.core.host_names import AUTHORITY, address_of, is_own_host, name_in
from treadle.server.errors import Refused

HEADERS: Final = frozenset(
    {
        b"host",
        b"origin",
        b"sec-fetch-site",
        b"sec-fetch-mode",
        b"sec-fetch-dest",
        b"authorization",
        b"cookie",
        b"x-request-id",
    }
)
ORIGIN: Final = re.compile(r"(https?)://([^/?#@\s]+)")
PORTS: Final = {"http": "80", "https": "443"}
ANY: Final = "*"
SHOWN: Final = 100  # characters of a foreign name in an error

Heads = Mapping[bytes, str]


def heads_of(scope: Scope) -> dict[bytes, str]:
    """The headers that the guard reads. Raises Refused (400) for a second Host, which parsers treat differently."""
    heads: dict[bytes, str] = {}
    for name, value in scope["headers"]:
        if name in HEADERS:
            if name == b"host" and name in heads:
                raise Refused(400, "malformed", "expected one Host header, found several")
            text = bytes(value).decode("latin-1")
            if name == b"cookie" and name in heads:  # HTTP/2 may send one header for each cookie
                heads[name] += f"; {text}"
            heads.setdefault(name, text)
    return heads


def check_origins(origins: Iterable[str], is_open: bool) -> None:
    """Raise BadOption for an origin that no browser sends, and for "*" on a server without tokens."""
    for origin in origins:
        if origin == ANY:
            if is_open:
                raise BadOption(
                    "origins", "expected a list of origins: without tokens, '*' lets every web page do everything"
                )
            continue
        if not is_origin(origin):
            raise BadOption("origins", f"expected scheme://host[:port] in lower case, found {origin!r}")


def check_hosts(hosts: Iterable[str], is_open: bool) -> None:
    """Raise BadOption for an invalid host name, and for "*" on a server without tokens."""
    for host in hosts:
        if host == ANY:
            if is_open:
                raise BadOption(
                    "hosts", "expected a list of hosts: without tokens, '*' lets every web page in by DNS rebinding"
                )
        elif re.fullmatch(r"\.?[a-z0-9_-]+(\.[a-z0-9_-]+)*", host) is None and address_of(host) is None:
            message = "expected a name such as jobs.example.org, or .example.org for all names below it"
            raise BadOption("hosts", f"{message}, in lower case and without a port, found {host!r}")


def is_origin(text: str) -> bool:
    """Whether the text is an origin as browsers write it: scheme://host[:port] in lower case."""
    parts = ORIGIN.fullmatch(text)
    return parts is not None and AUTHORITY.fullmatch(parts[2]) is not None


class OriginCheck:
    """The rules of one server.

    hosts    names of the server, besides IP addresses, localhost and the name of the machine
    origins  origins whose pages may call it, besides its own
    """

    def __init__(self, hosts: Iterable[str], origins: Iterable[str]) -> None:
        self._exact = {host for host in hosts if not host.startswith(".")}
        self._below = tuple(host for host in hosts if host.startswith("."))
        self._origins = frozenset(origins)
        self._serves = functools.lru_cache(1024)(self._is_served)  # 0.1 us per request instead of 3

    def check(self, scope: Scope, heads: Heads) -> None:
        """Raise Refused (403) for a foreign host name or a page of another site."""
        host = heads.get(b"host")
        if host:
            server = scope.get("server")
            if not self._serves(host, server[0] if server else None):
                name = host.lower().rpartition(":")[0] or host.lower()
                message = f"{host[:SHOWN]!r} is not a host name of this server"
                advice = f"to allow it, start the server with --allow-host {name[:SHOWN]} (Settings: hosts)"
                raise Refused(403, "foreign_host", f"{message}; {advice}")
        if (b"origin" in heads or b"sec-fetch-site" in heads) and self._is_foreign(scope, heads):
            sender = heads.get(b"origin") or "another site"
            message = f"a web page of {sender[:SHOWN]} sent this request, and only pages of this server are allowed"
            advice = f"; to allow it, start the server with --origin {sender[:SHOWN]} (Settings: origins)"
            named = b"origin" in heads and sender != "null"
            raise Refused(403, "cross_site", message + (advice if named else ""))

    def _is_served(self, host: str, local: str | None) -> bool:
        """Whether a Host header names this server. `local`: the local address of the connection."""
        if ANY in self._exact and AUTHORITY.fullmatch(host.lower()) is not None:
            return True
        if is_own_host(host, local):
            return True
        name = name_in(host)
        return name is not None and (name in self._exact or any(name.endswith(domain) for domain in self._below))

    def _is_foreign(self, scope: Scope, heads: Heads) -> bool:
        """Whether a page sent the request whose origin is not this server and not one of `origins`."""
        origin = heads.get(b"origin")
        if origin is not None and (origin in self._origins or ANY in self._origins):
            return False
        return not self.is_own(scope, heads)

    @staticmethod
    def is_own(scope: Scope, heads: Heads) -> bool:
        """Whether a page of this server, or a person, sent a request that has Origin or Sec-Fetch-Site. A person can
        follow a link from any site."""
        origin, site = heads.get(b"origin"), heads.get(b"sec-fetch-site")
        if site is not None:
            if site in ("same-origin", "none"):
                return True
            followed = heads.get(b"sec-fetch-mode") == "navigate" and heads.get(b"sec-fetch-dest") == "document"
            return followed and scope["method"] in ("GET", "HEAD")
        # Browsers omit Sec-Fetch-Site for plain http:// names, and old browsers always.
        return _is_same(origin or "", heads.get(b"host", ""), scope.get("scheme", "http"))


def _is_same(origin: str, host: str, scheme: str) -> bool:
    """Whether an origin matches a Host header. A proxy may terminate TLS, so an https origin fits a plain server."""
    parts = ORIGIN.fullmatch(origin)
    if parts is None or (scheme == "https" and parts[1] != "https"):
        return False
    theirs, ours = AUTHORITY.fullmatch(parts[2].lower()), AUTHORITY.fullmatch(host.lower())
    if theirs is None or ours is None:
        return False
    default = PORTS[parts[1]]
    return (theirs[1], theirs[2], theirs[3] or default) == (ours[1], ours[2], ours[3] or default)


@functools.lru_cache(10_000)
def network_of(address: str) -> str:
    """The address under which a caller without a token is counted: IPv4, or the /64 network of IPv6."""
    ip = address_of(address.partition("%")[0])
    if not isinstance(ip, ipaddress.IPv6Address):
        return address
    mapped = ip.ipv4_mapped
    return str(mapped) if mapped is not None else str(ipaddress.ip_network((int(ip) >> 64 << 64, 64)))
