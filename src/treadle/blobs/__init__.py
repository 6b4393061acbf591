"""Content-addressed blobs: bytes stored under their SHA-256, which every read verifies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.blobs.address import address_of, sri
from treadle.blobs.directory import MOST, DirectoryBlobs
from treadle.blobs.objects import FolderObjects, ObjectEntry, Objects, digest_of
from treadle.blobs.store import BadAddress, Blob, Blobs, Corrupt, NoBlob, TooBig

if TYPE_CHECKING:
    from treadle.blobs.s3 import S3Blobs
    from treadle.blobs.s3_objects import BucketObjects
else:
    # on demand, because they need an HTTP client
    from treadle.core.lazy_names import lazy_names

    __getattr__, __dir__ = lazy_names(
        __name__,
        globals(),
        {"treadle.blobs.s3": ("S3Blobs",), "treadle.blobs.s3_objects": ("BucketObjects",)},
    )

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
