"""Content-addressed blobs: bytes under the name of their own SHA-256, checked on every read."""

from __future__ import annotations

from typing import Any

from treadle.blobs.address import address_of, sri
from treadle.blobs.directory import MOST, DirectoryBlobs
from treadle.blobs.store import BadAddress, Blob, Blobs, Corrupt, NoBlob, TooBig

__all__ = [
    "MOST",
    "BadAddress",
    "Blob",
    "Blobs",
    "Corrupt",
    "DirectoryBlobs",
    "NoBlob",
    "S3Blobs",
    "TooBig",
    "address_of",
    "sri",
]


def __getattr__(name: str) -> Any:
    if name == "S3Blobs":  # it needs an HTTP client, which a directory does not
        from treadle.blobs.s3 import S3Blobs

        return S3Blobs
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
