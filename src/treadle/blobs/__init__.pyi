"""The names of the package, each with its module. Type checkers read this file, and so does `__init__.py`."""

from treadle.blobs.directory import MOST as MOST
from treadle.blobs.directory import DirectoryBlobs as DirectoryBlobs
from treadle.blobs.objects import FolderObjects as FolderObjects
from treadle.blobs.objects import ObjectEntry as ObjectEntry
from treadle.blobs.objects import Objects as Objects
from treadle.blobs.objects import digest_of as digest_of
from treadle.blobs.s3 import S3Blobs as S3Blobs
from treadle.blobs.s3_objects import BucketObjects as BucketObjects
from treadle.blobs.store import BadAddress as BadAddress
from treadle.blobs.store import Blob as Blob
from treadle.blobs.store import Blobs as Blobs
from treadle.blobs.store import Corrupt as Corrupt
from treadle.blobs.store import NoBlob as NoBlob
from treadle.blobs.store import TooBig as TooBig
from treadle.blobs.store import address_of as address_of
from treadle.blobs.store import sri as sri
