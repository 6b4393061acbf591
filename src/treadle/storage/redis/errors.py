"""The driver's errors as the library's. Without it a caller could not tell a full server from one that is away."""

from __future__ import annotations

from typing import Final

from redis import exceptions as told

from treadle.errors import StorageDenied, StorageError, StorageFull, StorageUnavailable

FULL = ("OOM", "MISCONF", "NOREPLICAS")
RIGHTS: Final = (
    "-@all +@hash +@set +@sortedset +@string +@pubsub +@scripting +@connection +del +exists +pexpire +time +role "
    "+cluster|slots +info +config|get"
)
ADVICE: Final = "check the user and password in the URL, and the user's rights (guide on Redis, section ACL)"
DENIED = ("NOPERM", "NOAUTH", "WRONGPASS")
IN_SCRIPT = ("ACL failure in script", "user executing the script")  # as Redis and Valkey say NOPERM there
REFUSED = (told.AuthenticationError, told.AuthorizationError, told.NoPermissionError)
AWAY = (
    "READONLY",
    "LOADING",
    "BUSY",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "UNBLOCKED",
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
    if isinstance(error, REFUSED) or (isinstance(error, told.ResponseError) and _denied(error)):
        return StorageDenied(f"{where}: {error}; {ADVICE}")
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


def _denied(error: Exception) -> bool:
    return says(error, DENIED) or any(words in str(error) for words in IN_SCRIPT)


def says(error: Exception, codes: tuple[str, ...]) -> bool:
    """Whether the server said one of these; a script's own call wraps what it was told."""
    text = str(error)
    return text.startswith(codes) or any(f"-{code} " in text or f": {code} " in text for code in codes)
