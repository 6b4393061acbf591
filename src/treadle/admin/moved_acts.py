"""After a move, an act at the old storage must not answer "nothing to do": it raises StorageMoved.

The storage refuses what would store or claim a job by itself. It cannot refuse an act that finds no job to change, so
every public coroutine method of these classes is checked here, unless the class says that it only looks.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Final

from treadle.core.argument_names import spelled_call
from treadle.errors import KeyHeld, Stale, UnknownJob, UnknownSchedule
from treadle.storage.contract import Storage
from treadle.storage.transfer import check_stays

REFUSED: Final = (UnknownJob, UnknownSchedule, Stale, KeyHeld)  # the row may be elsewhere, and differ there


class Stays:
    """A class whose acts raise StorageMoved where they changed nothing, or where a row is unknown or unfit, because the
    jobs live elsewhere now.

    looks   public methods that may answer nothing: they read, or the storage refuses what they store
    """

    looks: ClassVar[frozenset[str]] = frozenset()
    _storage: Callable[[], Awaitable[Storage]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, method in list(vars(cls).items()):
            if not name.startswith("_") and inspect.iscoroutinefunction(method):
                setattr(cls, name, _checked(method, name in cls.looks))


def _checked(method: Callable[..., Awaitable[Any]], looks: bool) -> Callable[..., Awaitable[Any]]:
    spelled = spelled_call(method)

    @functools.wraps(method)  # with an underscore: `nested` names the public method on the stack
    async def _acted(self: Stays, *args: Any, **kwargs: Any) -> Any:
        try:
            found = await spelled(self, *args, **kwargs)
        except REFUSED:
            await check_stays(await self._storage())
            raise
        if not (found or looks):
            await check_stays(await self._storage())
        return found

    return _acted
