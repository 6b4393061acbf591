"""Makes changes at the old storage of a move raise StorageMoved instead of reporting that there is nothing to do.

The storage itself refuses to store or claim jobs. It cannot refuse a call that finds no job to change, so every public
coroutine method of these classes is checked here, unless the class lists it in `looks`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Final

from treadle.core.argument_names import spelled_call
from treadle.core.errors import KeyHeld, Stale, UnknownJob, UnknownSchedule
from treadle.storage.contract import Storage
from treadle.storage.move_marks import check_stays

REFUSED: Final = (UnknownJob, UnknownSchedule, Stale, KeyHeld)  # the row may differ at the new storage


class Stays:
    """A class whose methods raise StorageMoved after a move if they change nothing, or find no suitable row.

    looks   public methods that may return nothing: they read, or the storage refuses their writes
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

    @functools.wraps(method)  # underscore: `nested` names the public method on the stack
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
