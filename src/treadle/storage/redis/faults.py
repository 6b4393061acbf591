"""The driver's errors as the library's. Without it a caller could not tell a full server from one that is away."""

from __future__ import annotations

from redis import exceptions as told

from treadle.errors import StorageError, StorageFull, StorageUnavailable

FULL = ("OOM", "READONLY", "MISCONF", "NOREPLICAS", "NOPERM")
AWAY = ("LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "UNBLOCKED", "NOAUTH", "WRONGPASS", "UNKILLABLE")


def translated(error: BaseException, where: str) -> BaseException:
    """The error a caller is told; others than the driver's and the system's stay as they are."""
    if isinstance(error, StorageError):
        return error
    if isinstance(error, (told.ReadOnlyError, told.OutOfMemoryError)):
        return StorageFull(f"{where}: {error}; nothing of the call was stored")
    if isinstance(error, (told.ConnectionError, told.TimeoutError, OSError, EOFError)):
        return StorageUnavailable(f"{where}: {str(error) or type(error).__name__}")
    if isinstance(error, told.ResponseError):
        words = f"{where}: {error}"
        if _says(error, FULL):
            return StorageFull(f"{words}; nothing of the call was stored")
        return StorageUnavailable(words) if _says(error, AWAY) else StorageError(words)
    if isinstance(error, told.RedisError):
        return StorageError(f"{where}: {error}")
    return error


def _says(error: Exception, codes: tuple[str, ...]) -> bool:
    """Whether the server said one of these; a script's own call wraps what it was told."""
    text = str(error)
    return text.startswith(codes) or any(f"-{code} " in text or f": {code} " in text for code in codes)
