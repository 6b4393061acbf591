"""Content-addressed blobs: bytes under the name of their own SHA-256, checked on every read."""

from treadle.blobs.address import address_of, sri
from treadle.blobs.directory import DirectoryBlobs
from treadle.blobs.store import BadAddress, Blob, Blobs, Corrupt, NoBlob, TooBig

__all__ = ["BadAddress", "Blob", "Blobs", "Corrupt", "DirectoryBlobs", "NoBlob", "TooBig", "address_of", "sri"]
