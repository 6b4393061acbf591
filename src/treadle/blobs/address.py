"""The addresses of blobs: SHA-256 in hex, or as in subresource integrity (`sha256-<base64>`)."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final

from treadle.blobs.store import BadAddress

HEX: Final = re.compile(r"[0-9a-fA-F]{64}")


def address_of(text: str) -> str:
    """Convert any form of an address to 64 lower-case hex digits. Raises BadAddress."""
    if HEX.fullmatch(text):
        return text.lower()
    if text.startswith("sha256-"):
        try:
            digest = base64.b64decode(text.removeprefix("sha256-").replace("-", "+").replace("_", "/"), validate=True)
        except (binascii.Error, ValueError):
            digest = b""
        if len(digest) == 32:
            return digest.hex()
    shown = text if len(text) <= 80 else text[:77] + "..."
    raise BadAddress(f"expected 64 hex digits or sha256-<base64>, found {shown!r}")


def sri(address: str) -> str:
    """Convert an address to the form of subresource integrity."""
    return "sha256-" + base64.b64encode(bytes.fromhex(address)).decode()
