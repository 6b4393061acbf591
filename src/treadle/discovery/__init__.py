"""Finding servers without being told where they are: multicast DNS, announced and browsed with the standard library."""

from treadle.discovery.announce import Announcement
from treadle.discovery.browse import Browser, Found
from treadle.discovery.link import NoMulticast, Place, place
from treadle.discovery.services import BLOBS, QUEUES, Whereabouts, find

__all__ = [
    "BLOBS",
    "QUEUES",
    "Announcement",
    "Browser",
    "Found",
    "NoMulticast",
    "Place",
    "Whereabouts",
    "find",
    "place",
]
