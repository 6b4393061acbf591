"""Service discovery by multicast DNS: announces servers and finds them, with the standard library only."""

from treadle.contrib.discovery.announce import Announcement
from treadle.contrib.discovery.browse import Browser, Found
from treadle.contrib.discovery.link import Network, NoMulticast, place
from treadle.contrib.discovery.services import BLOBS, QUEUES, Whereabouts, find

__all__ = [
    "BLOBS",
    "QUEUES",
    "Announcement",
    "Browser",
    "Found",
    "Network",
    "NoMulticast",
    "Whereabouts",
    "find",
    "place",
]
