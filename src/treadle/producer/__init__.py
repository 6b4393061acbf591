"""Enqueues jobs and waits for their results."""

from treadle.producer.batching import Batcher
from treadle.producer.client import Client
from treadle.producer.client_parts import ClientParts, Outboxes
from treadle.producer.sender import Sender

__all__ = [
    "Batcher",
    "Client",
    "ClientParts",
    "Outboxes",
    "Sender",
]
