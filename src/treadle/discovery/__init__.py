"""Service discovery by multicast DNS: announces servers and finds them, with the standard library only."""

from treadle.discovery.announce import Announcement
from treadle.discovery.browse import Browser, Found
from treadle.discovery.link import Network, NoMulticast, place
from treadle.discovery.services import BLOBS, QUEUES, Whereabouts, find

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
