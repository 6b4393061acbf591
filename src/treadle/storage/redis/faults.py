"""The driver's errors as the library's. Without it a caller could not tell a full server from one that is away."""

from __future__ import annotations

from redis import exceptions as told

from treadle.errors import StorageError, StorageFull, StorageUnavailable

FULL = ("OOM", "MISCONF", "NOREPLICAS", "NOPERM")
AWAY = (
    "READONLY",
    "LOADING",
    "BUSY",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "UNBLOCKED",
    "NOAUTH",
    "WRONGPASS",
    "UNKILLABLE",
)


def translated(error: BaseException, where: str) -> BaseException:
    """The error a caller is told; others than the driver's and the system's stay as they are."""
    if isinstance(error, StorageError):
        return error
    if isinstance(error, told.OutOfMemoryError):
        return StorageFull(f"{where}: {error}; nothing of the call was stored")
    if isinstance(error, told.ReadOnlyError):
        return StorageUnavailable(f"{where}: it is a replica, or was made one ({error})")
    if isinstance(error, (told.AskError, told.TryAgainError)):
        return StorageUnavailable(f"{where}: our keys are on their way to another node ({error})")
    if isinstance(error, (told.ConnectionError, told.TimeoutError, told.ClusterDownError, OSError, EOFError)):
        return StorageUnavailable(f"{where}: {str(error) or type(error).__name__}")
    if isinstance(error, told.ResponseError):
        words = f"{where}: {error}"
        if says(error, FULL):
            return StorageFull(f"{words}; nothing of the call was stored")
        return StorageUnavailable(words) if says(error, AWAY) else StorageError(words)
    if isinstance(error, told.RedisError):
        return StorageError(f"{where}: {error}")
    return error


def says(error: Exception, codes: tuple[str, ...]) -> bool:
    """Whether the server said one of these; a script's own call wraps what it was told."""
    text = str(error)
    return text.startswith(codes) or any(f"-{code} " in text or f": {code} " in text for code in codes)
