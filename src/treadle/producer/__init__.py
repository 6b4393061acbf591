"""Enqueues jobs and waits for their results."""

from treadle.producer.batching import Batcher, Sender
from treadle.producer.client import Client, Joined, Write
from treadle.producer.client_parts import ClientParts, Outboxes
from treadle.producer.mailboxes import Sent
from treadle.producer.stream_readers import StreamPlace

__all__ = ["Batcher", "Client", "ClientParts", "Joined", "Outboxes", "Sender", "Sent", "StreamPlace", "Write"]
