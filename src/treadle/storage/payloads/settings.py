"""Checks the options `blobs`, `offload` and `keys` of an app."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Self, cast

from treadle.blobs import FolderObjects, Objects
from treadle.core import defaults
from treadle.core.errors import BadOption
from treadle.serialization import Keys
from treadle.storage.contract import Storage
from treadle.storage.optional_parts import Bound
from treadle.storage.payloads.bound import PayloadBound
from treadle.storage.payloads.texts import OFFLOAD, Texts
from treadle.storage.payloads.wrapper import PayloadStorage

LEAST: Final = 1_024  # bytes: a reference has 110


class Wrapping:
    """Makes the storage of an app one that offloads and encrypts."""

    def __init__(self, texts: Texts) -> None:
        self.texts = texts

    @classmethod
    def of(cls, blobs: object, offload: object, keys: object) -> Self:
        """The settings from the options of an app. Raises BadOption and BadUrl."""
        if blobs is None and offload is not None:
            raise BadOption("offload", "needs blobs=: the place where large texts are stored")
        offload = OFFLOAD if offload is None else offload
        if isinstance(offload, bool) or not isinstance(offload, int) or not LEAST <= offload <= defaults.MAX_PAYLOAD:
            raise BadOption("offload", f"expected {LEAST:,} to {defaults.MAX_PAYLOAD:,} bytes, found {offload!r}")
        if keys is not None and not isinstance(keys, Keys):
            raise BadOption("keys", f"expected Keys(...), found a {type(keys).__name__}")
        return cls(Texts(None if blobs is None else _objects(blobs), offload, keys))

    def with_objects(self, objects: Objects) -> Wrapping:
        """The same rules with this blob store instead of the app's; without one, if the app has none."""
        texts = self.texts
        return Wrapping(Texts(None if texts.objects is None else objects, texts.above, texts.keys))

    def storage(self, storage: Storage) -> Storage:
        """A storage over this one, with connections of its own to the blob store."""
        return PayloadStorage(storage, self.texts.elsewhere())

    def bound(self, bound: Bound) -> Bound:
        """The verbs of an outbox. They encrypt and do not offload: a job may wait there for longer than the blob store
        keeps a text without a row. The relay's enqueue offloads it."""
        texts = self.texts
        return PayloadBound(bound, Texts(None, texts.above, texts.keys))


def _objects(blobs: object) -> Objects:
    if isinstance(blobs, str | Path):
        text = str(blobs)
        if not text.startswith("s3:"):
            if not text or "://" in text:
                raise BadOption("blobs", "expected a folder or s3://bucket/prefix")
            return FolderObjects(text)
        try:
            from treadle.blobs import BucketObjects
        except ImportError as error:
            raise BadOption("blobs", f"a bucket needs the extra: pip install 'treadle[s3]' ({error})") from None
        return BucketObjects.at(text)
    if all(callable(getattr(blobs, verb, None)) for verb in ("put", "get", "delete", "page", "fresh", "close")):
        return cast("Objects", blobs)
    raise BadOption("blobs", f"expected a folder, s3://bucket/prefix or an object store, found {type(blobs).__name__}")
