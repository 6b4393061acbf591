"""Wakes the other processes at this file: a datagram after each commit, and polling in case one is lost.

Otherwise a worker would find another process's jobs only at its next poll. Datagrams are hints: any of them may be
lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from treadle.concurrency import forks
from treadle.core.errors import UNREADABLE
from treadle.core.private_files import FILE, make_file, share
from treadle.storage.sqlite.socket_folder import SocketFolder
from treadle.storage.topic_waiters import TopicWaiters

MANY: Final = 50  # topics in a datagram; of more, only their kinds are sent
POLL: Final = 0.2  # s between two checks whether other processes have committed
KINDS: Final = ("queue:*", "job:*", "worker:*")
QUEUES_AND_JOBS: Final = KINDS[:2]
HAND: Final = "hand:"  # prefix of a hand-off address; such a topic goes to one process only
UNIX: Final = hasattr(socket, "AF_UNIX") and os.name == "posix"


class Notifier:
    """Sends to the sockets of all storage objects at this file, and receives at its own. They are in a folder next to
    the file.

    foreign_version  see `OpenFile.foreign_version`
    deliver          called with each topic that hands a job to an address here
    """

    can_probe: Final = UNIX  # on Windows a port may belong to another process by now

    def __init__(
        self,
        path: str,
        waiters: TopicWaiters,
        foreign_version: Callable[[], int | None],
        deliver: Callable[[str], None],
    ) -> None:
        self._waiters, self._foreign_version, self._deliver_here = waiters, foreign_version, deliver
        self._place = SocketFolder(path)
        self._folder = self._place.path
        self.beside = self._place.beside  # all processes that can receive there may also read the file
        self._path, self._name = path, _name()
        self._socket: socket.socket | None = None
        self._sender: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._others: list[str] = []
        self._folder_changed: int | None = None  # when the folder last changed, as far as this object has read it
        self._listeners = 0
        self._version: int | None = None
        self._poll_timer: asyncio.TimerHandle | None = None
        self._received = False
        forks.register(self)

    def start(self) -> None:
        """The file is open: report commits of other processes from now on."""
        self._version = self._foreign_version()

    # --- sending

    def publish(self, topics: set[str]) -> None:
        """Wake those who wait for the topics here, and send them to the other processes. Never waits and never raises,
        because the jobs are committed."""
        self._waiters.wake(topics)
        handed_over = 0
        try:
            for topic in topics:
                if topic.startswith(HAND):
                    handed_over += 1
                    self._deliver(topic)
            if handed_over == len(topics):
                return
            if self._folder_changed is None and not os.access(self._folder, os.F_OK):
                return  # no process has ever listened: 1.5 us less than the error of the next line
            changed = self._place.changed()  # raises if the last listener has closed since
            if changed != self._folder_changed:
                self._others = [name for name in os.listdir(self._folder) if name != self._name]
                self._folder_changed = changed
            if self._others:
                message = msgspec.json.encode(_few(topics))
                for name in list(self._others):
                    self._send(name, message)
        except OSError:
            pass  # the folder is not readable or was deleted; listeners also poll the file

    def _deliver(self, topic: str) -> None:
        """Deliver only to that receiver: by datagram to another process, in this process on the next loop turn."""
        if self.is_here(topic):
            asyncio.get_running_loop().call_soon(self._deliver_here, topic)
        else:
            self._place.changed()  # raises if the folder is no longer safe; the topic may contain a whole job
            self._send(_receiver_of(topic), msgspec.json.encode([topic]))

    def _send(self, name: str, message: bytes) -> None:
        if self._sender is None:
            with forks.opening:
                self._sender = _new_socket()
        address = os.path.join(self._folder, name)
        try:
            self._sender.sendto(message, address if UNIX else _port_of(address))
        except BlockingIOError:
            pass  # it has unread datagrams, so it is awake
        except (ConnectionRefusedError, FileNotFoundError, ValueError):
            if name in self._others:
                self._others.remove(name)  # its process has ended
            with contextlib.suppress(OSError):
                os.unlink(address)
        except OSError:
            pass

    def is_alive(self, address: str) -> bool:
        """Whether another process listens at this address."""
        with contextlib.suppress(OSError), _new_socket() as probe:
            self._place.changed()
            probe.connect(os.path.join(self._folder, _receiver_of(address)))
            return True
        return False

    def is_here(self, address: str) -> bool:
        return _receiver_of(address) == self._name

    # --- receiving

    def address(self, number: int) -> str:
        """A hand-off address at this receiver."""
        return f"{HAND}{self._name}:{number}"

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """While a caller watches: receive datagrams, and poll."""
        self._listeners += 1
        self.register()
        if self._poll_timer is None:
            self._poll_timer = asyncio.get_running_loop().call_later(POLL, self._poll)
        try:
            yield
        finally:
            self._listeners -= 1
            if not self._listeners and self._poll_timer is not None:
                self._poll_timer.cancel()
                self._poll_timer = None

    def register(self) -> bool:
        """Open the receiver. False: there can be none."""
        if self._socket is not None:
            return True
        loop = asyncio.get_running_loop()
        try:
            with forks.opening:
                self._socket = self._receiver()
            loop.add_reader(self._socket, self._receive)
        except (OSError, NotImplementedError):
            if self._socket is not None:  # polling must do
                self._socket.close()
                self._socket = None
            return False
        self._loop = loop
        return True

    def _receiver(self) -> socket.socket:
        """Create a socket at our address in the folder."""
        address = os.path.join(self._folder, self._name)
        self._place.make()
        receiver = _new_socket()
        try:
            if UNIX:
                # Linux takes the mode from here; elsewhere the folder's mode protects it
                with contextlib.suppress(OSError):
                    os.fchmod(receiver.fileno(), FILE)
                receiver.bind(address)
            else:
                receiver.bind(("127.0.0.1", 0))
                make_file(address)
                with open(address, "w", encoding="ascii") as file:
                    file.write(str(receiver.getsockname()[1]))
            share(address, self._path)
        except BaseException:
            receiver.close()
            raise
        return receiver

    def forked(self) -> None:
        """Only the parent listens. A datagram sent to it after its death must find no socket."""
        for open_socket in (self._socket, self._sender):
            if open_socket is not None:
                open_socket.close()
        self._socket = self._sender = self._loop = self._poll_timer = None
        self._listeners = 0
        self._name = _name()

    def _receive(self) -> None:
        assert self._socket is not None
        topics: set[str] = set()
        for _ in range(100):
            try:
                topics.update(msgspec.json.decode(self._socket.recv(65_536), type=list[str]))
            except (BlockingIOError, InterruptedError):
                break
            except (OSError, *UNREADABLE):
                continue
        self._received = True
        for topic in topics:
            if topic.startswith(HAND):
                self._deliver_here(topic)
        self._waiters.wake(topics)

    def _poll(self) -> None:
        """Check whether other processes have committed since the last check. A change that datagrams may have reported
        is published again only if it is still there at the next check."""
        version = self._foreign_version()
        if version is not None and version != self._version:
            if self._received and self._version is not None:
                self._received = False  # published by the next check if the version still differs
            else:
                self._version = version
                # A heartbeat answers "worker:*", and its commit would be the change that the other processes find next:
                # idle processes would send 4 heartbeats a second for ever. Without a socket, polling is the only
                # report, so it wakes for all kinds.
                self._waiters.wake(KINDS if self._socket is None else QUEUES_AND_JOBS)
        self._poll_timer = asyncio.get_running_loop().call_later(POLL, self._poll)

    def stop_receiving(self) -> None:
        if self._poll_timer is not None:
            self._poll_timer.cancel()
            self._poll_timer = None
        if self._socket is not None:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self._folder, self._name))
            with contextlib.suppress(OSError):
                os.rmdir(self._folder)  # only the last process can delete it

    def close(self) -> None:
        """To be called after the last commit, because each commit is published."""
        self.stop_receiving()
        if self._sender is not None:
            self._sender.close()
            self._sender = None


def _name() -> str:
    return f"{os.getpid()}-{secrets.token_hex(4)}"


def _receiver_of(address: str) -> str:
    return address.split(":")[1]


def _few(topics: set[str]) -> list[str]:
    """The topics, or their kinds if there are many, because the size of a datagram is limited."""
    topics = {topic for topic in topics if not topic.startswith(HAND)}
    if len(topics) <= MANY:
        return list(topics)
    kept: list[str] = []
    for kind in KINDS:
        own = [topic for topic in topics if topic.startswith(kind[:-1])]
        kept += [kind] if len(own) > MANY // len(KINDS) else own
    return kept


def _new_socket() -> socket.socket:
    new = socket.socket(socket.AF_UNIX if UNIX else socket.AF_INET, socket.SOCK_DGRAM)
    new.setblocking(False)
    return new


def _port_of(address: str) -> tuple[str, int]:
    with open(address, encoding="ascii") as file:
        return "127.0.0.1", int(file.read())
