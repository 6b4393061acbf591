"""Content-addressed blobs: bytes stored under their SHA-256, which every read verifies."""

from __future__ import annotations

from typing import Any

from treadle.blobs.address import address_of, sri
from treadle.blobs.directory import MOST, DirectoryBlobs
from treadle.blobs.objects import FolderObjects, ObjectEntry, Objects, digest_of
from treadle.blobs.s3_objects import BucketObjects
from treadle.blobs.store import BadAddress, Blob, Blobs, Corrupt, NoBlob, TooBig

__all__ = [
    "MOST",
    "BadAddress",
    "Blob",
    "Blobs",
    "BucketObjects",
    "Corrupt",
    "DirectoryBlobs",
    "FolderObjects",
    "NoBlob",
    "ObjectEntry",
    "Objects",
    "S3Blobs",
    "TooBig",
    "address_of",
    "digest_of",
    "sri",
]


def __getattr__(name: str) -> Any:
    if name == "S3Blobs":  # imported on demand, because it needs an HTTP client
        from treadle.blobs.s3 import S3Blobs

        return S3Blobs
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
