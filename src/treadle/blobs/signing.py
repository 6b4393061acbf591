"""Signs requests to S3-compatible storage (AWS signature version 4). A pure function of request, secret and time."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

from msgspec import Struct

SERVICE: Final = "s3"
ALGORITHM: Final = "AWS4-HMAC-SHA256"
NOTHING: Final = hashlib.sha256(b"").hexdigest()  # the digest of an empty body


class Credentials(Struct, frozen=True):
    """An access key and its secret. `token`: the session token of temporary credentials."""

    key: str
    secret: str
    token: str | None = None

    async def current(self) -> Credentials:
        """Itself: these credentials do not change."""
        return self


def escaped(path: str) -> str:
    """A path as it is signed and sent: every byte except letters, digits, -._~ and / percent-encoded."""
    return quote(path, safe="/~")


def query_string(query: Mapping[str, str]) -> str:
    """A query as it is signed and sent."""
    return "&".join(f"{quote(key, safe='~')}={quote(value, safe='~')}" for key, value in sorted(query.items()))


def sign(
    method: str,
    host: str,
    path: str,
    query: Mapping[str, str],
    headers: Mapping[str, str],
    digest: str,
    who: Credentials,
    region: str,
    now: float,
) -> dict[str, str]:
    """All headers to send: the given ones and their signature.

    path    already escaped
    digest  SHA-256 of the body in hex; the server refuses a body with another digest
    now     seconds since 1970; servers refuse requests that are some minutes off
    """
    moment = datetime.fromtimestamp(now, UTC)
    stamp, day = f"{moment:%Y%m%dT%H%M%SZ}", f"{moment:%Y%m%d}"
    sent = {**headers, "host": host, "x-amz-content-sha256": digest, "x-amz-date": stamp}
    if who.token is not None:
        sent["x-amz-security-token"] = who.token
    lines = {name.lower(): " ".join(value.split()) for name, value in sent.items()}
    names = ";".join(sorted(lines))
    header_lines = "".join(f"{name}:{lines[name]}\n" for name in sorted(lines))
    request = "\n".join((method, path, query_string(query), header_lines, names, digest))
    scope = f"{day}/{region}/{SERVICE}/aws4_request"
    text = "\n".join((ALGORITHM, stamp, scope, hashlib.sha256(request.encode()).hexdigest()))
    key = f"AWS4{who.secret}".encode()
    for part in (day, region, SERVICE, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    sent["authorization"] = f"{ALGORITHM} Credential={who.key}/{scope}, SignedHeaders={names}, Signature={signature}"
    return sent
