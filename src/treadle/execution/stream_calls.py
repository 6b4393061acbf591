"""`current().stream` and `current().sync.stream`: write what people read while the job runs."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from treadle.durable import Durable


class Stream(Struct, frozen=True):
    """A stream of the job, which `app.jobs.follow(job, name)` reads. See `current().stream`."""

    _durably: Callable[[str], Durable]
    _name: str
    _keep: float | None

    async def write(self, value: object) -> None:
        """Add a chunk: any value that Treadle's codec stores, of at most 64 KiB. It is stored within 0.1 s, and before
        the result of its step. Waits while 64 KiB wait to be stored. Raises BadStep, BadOption, and TooLarge for more
        than 16 MiB or 100,000 chunks in all."""
        durable = self._durably(self._name)
        durable.on_loop(self._name)
        writer = durable.stream(self._name, self._keep)
        await writer.put(writer.waiting(value))


class SynchronousStream(Struct, frozen=True):
    """`Stream` for functions in threads."""

    _durable: Durable
    _name: str
    _keep: float | None

    def write(self, value: object) -> None:
        """As `Stream.write`."""
        writer = self._durable.stream(self._name, self._keep)
        self._durable.wait_here(writer.put(writer.waiting(value)))
