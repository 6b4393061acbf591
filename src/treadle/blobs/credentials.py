"""The credentials for a bucket: from the environment, otherwise from botocore's chain if it is installed.

The chain covers profiles, SSO, roles, Kubernetes service accounts and the metadata of machines. It may use the network
and files, so it runs in a thread; botocore renews credentials that expire.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any, Protocol

from treadle.blobs.signing import Credentials
from treadle.core.errors import BadUrl, StorageUnavailable

MISSING = (
    "blobs: found no credentials for S3. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or install botocore "
    "(pip install botocore), which also knows profiles, SSO and roles"
)


class Source(Protocol):
    """Returns the credentials to sign the next request with."""

    async def current(self) -> Credentials: ...


class Chain:
    """The credentials of a botocore session, renewed when they expire."""

    def __init__(self, session_credentials: Any) -> None:
        self._session_credentials = session_credentials

    async def current(self) -> Credentials:
        """Raises StorageUnavailable if expired credentials cannot be renewed now."""
        try:
            frozen = await asyncio.to_thread(self._session_credentials.get_frozen_credentials)
        except Exception as error:  # botocore's own, and those of its HTTP client
            raise StorageUnavailable(f"the credentials for S3 could not be renewed: {error}") from error
        return Credentials(frozen.access_key, frozen.secret_key, frozen.token)


def source_of(environment: Mapping[str, str] = os.environ) -> Source:
    """The credentials of AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, otherwise of botocore's chain.
    Raises BadUrl if there are none."""
    key, secret = environment.get("AWS_ACCESS_KEY_ID"), environment.get("AWS_SECRET_ACCESS_KEY")
    if key and secret:
        return Credentials(key, secret, environment.get("AWS_SESSION_TOKEN") or None)
    if key or secret:
        lacks = "AWS_SECRET_ACCESS_KEY" if key else "AWS_ACCESS_KEY_ID"
        raise BadUrl(f"blobs: expected {lacks} in the environment, too, or neither of the two")
    if environment is not os.environ:
        raise BadUrl(MISSING)
    try:
        from botocore.exceptions import BotoCoreError  # type: ignore[import-untyped]
        from botocore.session import Session  # type: ignore[import-untyped]
    except ImportError:
        raise BadUrl(MISSING) from None
    try:
        credentials = Session().get_credentials()
    except BotoCoreError as error:
        raise BadUrl(f"blobs: botocore found no credentials for S3: {error}") from error
    if credentials is None:
        raise BadUrl(
            "blobs: botocore found no credentials for S3. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
            "AWS_PROFILE, or give this machine a role"
        )
    return Chain(credentials)
