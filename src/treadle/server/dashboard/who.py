"""The caller of a dashboard that is part of another web application: a user of that application, and their rights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from msgspec.structs import force_setattr

from treadle.core.argument_names import Spelled
from treadle.core.errors import BadOption
from treadle.server.auth.tokens import SCOPES, Token
from treadle.tasks.options import name_of

GIVEN: Final = tuple(scope for scope in SCOPES if scope != "work")  # people do not work as workers
LONGEST: Final = 64  # characters of a name


class Who(Spelled, frozen=True, kw_only=True):
    """A user of the host application.

    name      of the user, for the log and the list of acts: 1-64 printable characters
    scopes    of read (see everything), operate (retry, cancel, pause, change), enqueue (send jobs). Default: read
    queues    the queues whose jobs they may see; none: all queues
    payloads  whether they may see arguments, results and errors; False: only the kinds and sizes of values
    """

    name: str
    scopes: tuple[str, ...] = ("read",)
    queues: tuple[str, ...] = ()
    payloads: bool = True

    def __post_init__(self) -> None:
        name: Any = self.name  # the host may pass values of any type
        scopes: Any = self.scopes
        queues: Any = self.queues
        payloads: Any = self.payloads
        if not isinstance(name, str) or not 1 <= len(name) <= LONGEST or not name.isprintable():
            raise BadOption("name", f"expected 1-{LONGEST} printable characters, found {name!r}")
        for field, value in (("scopes", scopes), ("queues", queues)):
            if isinstance(value, str) or not isinstance(value, Iterable):
                raise BadOption(field, f"expected a tuple of names, found {value!r}")
            # An iterator ends at its first reading, and no queues would mean all of them.
            force_setattr(self, field, tuple(value))
        for scope in self.scopes:
            if scope not in GIVEN:
                raise BadOption("scopes", f"expected {', '.join(GIVEN)}, found {scope!r}")
        for queue in self.queues:
            name_of(queue, "queues")
        if not isinstance(payloads, bool):
            raise BadOption("payloads", f"expected True or False, found {payloads!r}")

    def token(self) -> Token:
        """The same as a token of the server. It has no secret, so no request can send it."""
        return Token(name=self.name, digest="", scopes=self.scopes, queues=self.queues, payloads=self.payloads)
