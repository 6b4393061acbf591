"""Tells from a Host header whether a request is meant for this machine.

A web page whose own name resolves to this machine (DNS rebinding) has the same origin for its browser; only the Host
header distinguishes it.
"""

from __future__ import annotations

import functools
import ipaddress
import re
import socket
from typing import Final

AUTHORITY: Final = re.compile(r"(?:\[([0-9a-f:.]+)(?:%25[\w.~-]+)?\]|([\w.-]+))(?::(\d{0,5}))?", re.ASCII)


def is_own_host(host: str, local: str | None) -> bool:
    """Whether a Host header names this machine without a name that a page could choose. `local`: the local address of
    the connection."""
    name = name_in(host)
    if name is None:
        return False
    if address_of(name) is not None:  # DNS rebinding needs a name
        return True
    if name == "localhost" or name.endswith(".localhost") or name in machine_names():
        return True
    # Names without a dot belong to containers and local networks: accepted except on loopback.
    return "." not in name and not is_loopback(local)


def name_in(host: str) -> str | None:
    """The name or the address in a Host header; None if it has none."""
    parts = AUTHORITY.fullmatch(host.lower())
    return None if parts is None else (parts[1] or parts[2]).removesuffix(".")


def address_of(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def is_loopback(host: str | None) -> bool:
    """Whether only this machine can reach the address."""
    address = address_of((host or "").partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None) or address
    return host == "localhost" or (mapped is not None and mapped.is_loopback)


@functools.cache
def machine_names() -> frozenset[str]:
    """The host name of the machine, and its name in multicast DNS."""
    name = socket.gethostname().lower().removesuffix(".")
    return frozenset({name, f"{name.partition('.')[0]}.local"} if name else ())
