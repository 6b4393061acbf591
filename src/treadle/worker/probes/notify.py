"""Messages to systemd over the socket that $NOTIFY_SOCKET names, for units with Type=notify. Needs no dependency."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import MutableMapping
from typing import Final, Self

log = logging.getLogger("treadle.health")

NAMES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
STATUS_SIZE: Final = 512  # characters of STATUS; systemd cuts longer lines


class Notifier:
    """Sends messages to the service manager. Does nothing without an address.

    address   a path, or "@name" for an abstract socket
    watchdog  seconds within which the service manager expects WATCHDOG=1; None: it expects none
    """

    def __init__(self, address: str | None = None, watchdog: float | None = None) -> None:
        self.watchdog = None if address is None else watchdog
        self._address = address
        self._failing = False

    @classmethod
    def take(cls, environment: MutableMapping[str, str] = os.environ) -> Self:
        """The notifier that the environment describes. Removes its variables, so that no child process sends messages
        in the name of this one."""
        address, period, pid = (environment.pop(name, "") for name in NAMES)
        if not address:
            return cls()
        if address[0] not in "/@":
            log.warning(
                "NOTIFY_SOCKET: expected a path or @name, found %r; the service manager is not notified", address
            )
            return cls()
        is_ours = not pid or pid == str(os.getpid())
        return cls(address, int(period) / 1e6 if is_ours and period.isdecimal() and int(period) else None)

    def __bool__(self) -> bool:
        return self._address is not None

    def send(self, *lines: str) -> bool:
        """Send these assignments, such as `READY=1`, in one message -> whether the socket took it. A failure is logged
        once until one succeeds."""
        if self._address is None:
            return False
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
                channel.setblocking(False)
                channel.connect(address)
                channel.send("\n".join(lines).encode())
        except OSError as error:
            if not self._failing:
                log.warning("cannot notify the service manager (%s)", error.strerror or error)
            self._failing = True
            return False
        self._failing = False
        return True

    @staticmethod
    def status(text: str) -> str:
        """The assignment of the text that `systemctl status` shows."""
        return "STATUS=" + " ".join(text.split())[:STATUS_SIZE]
