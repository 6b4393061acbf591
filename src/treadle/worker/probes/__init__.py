"""Health of processes, for what runs them: pages over HTTP, a file, and messages to the service manager.

It needs nothing but asyncio, so that a process that only supervises stays small.
"""

from treadle.core.lazy_names import stubbed_names as _stubbed_names

__getattr__, __dir__, __all__ = _stubbed_names(__name__, __file__, globals())
