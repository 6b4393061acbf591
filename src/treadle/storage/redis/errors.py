"""Translates the driver's errors into the library's: full, denied, unavailable, or another storage error."""

from __future__ import annotations

from typing import Final

from redis import exceptions as driver

from treadle.core.errors import StorageDenied, StorageError, StorageFull, StorageUnavailable

FULL = ("OOM", "MISCONF", "NOREPLICAS")
RIGHTS: Final = (
    "-@all +@hash +@set +@sortedset +@string +@pubsub +@scripting +@connection +del +exists +pexpire +time +role "
    "+cluster|slots +info +config|get"
)
ADVICE: Final = "check the user and password in the URL, and the user's rights (guide on Redis, section ACL)"
DENIED = ("NOPERM", "NOAUTH", "WRONGPASS")
IN_SCRIPT = ("ACL failure in script", "user executing the script")  # of Redis and Valkey, for NOPERM in a script
REFUSED = (driver.AuthenticationError, driver.AuthorizationError, driver.NoPermissionError)
AWAY = ("READONLY", "LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "UNBLOCKED", "UNKILLABLE")


def translated(error: BaseException, where: str) -> BaseException:
    """The error to raise instead of one of the driver or the system; other errors are returned unchanged."""
    if isinstance(error, StorageError):
        return error
    if isinstance(error, driver.OutOfMemoryError):
        return StorageFull(f"{where}: {error}; nothing of the call was stored")
    if isinstance(error, driver.ReadOnlyError):
        return StorageUnavailable(f"{where}: the server is a replica, or became one ({error})")
    if isinstance(error, (driver.AskError, driver.TryAgainError)):
        return StorageUnavailable(f"{where}: the cluster is moving the keys to another node ({error})")
    if isinstance(error, REFUSED) or (isinstance(error, driver.ResponseError) and _denied(error)):
        return StorageDenied(f"{where}: {error}; {ADVICE}")
    if isinstance(error, (driver.ConnectionError, driver.TimeoutError, driver.ClusterDownError, OSError, EOFError)):
        return StorageUnavailable(f"{where}: {str(error) or type(error).__name__}")
    if isinstance(error, driver.ResponseError):
        text = f"{where}: {error}"
        if says(error, FULL):
            return StorageFull(f"{text}; nothing of the call was stored")
        return StorageUnavailable(text) if says(error, AWAY) else StorageError(text)
    if isinstance(error, driver.RedisError):
        return StorageError(f"{where}: {error}")
    return error


def _denied(error: Exception) -> bool:
    return says(error, DENIED) or any(phrase in str(error) for phrase in IN_SCRIPT)


def says(error: Exception, codes: tuple[str, ...]) -> bool:
    """Whether the server returned one of these codes. A script wraps the error of a command inside it."""
    text = str(error)
    return text.startswith(codes) or any(f"-{code} " in text or f": {code} " in text for code in codes)
