"""Service discovery by multicast DNS: announces servers and finds them, with the standard library only."""

from treadle.contrib.discovery.announce import Announcement
from treadle.contrib.discovery.browse import BLOBS, QUEUES, Browser, Found, Whereabouts, find
from treadle.contrib.discovery.link import Network, NoMulticast, place

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
