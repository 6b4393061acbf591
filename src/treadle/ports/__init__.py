"""Ports: three small interfaces for other systems (a queue, publish and subscribe, and a key-value store).

`App(ports=(queue, pubsub, store))` builds a storage from them. Implementations for brokers are separate modules:
`treadle.ports.redis`, `treadle.ports.sqs` and `treadle.ports.nats`.
"""

from treadle.core.lazy_names import stubbed_names as _stubbed_names

__getattr__, __dir__, __all__ = _stubbed_names(__name__, __file__, globals())
