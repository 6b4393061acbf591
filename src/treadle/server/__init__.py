"""Jobs over HTTP: the native API, the worker protocol, and the server that serves them. Needs `treadle[server]`."""

from treadle.core.lazy_names import stubbed_names as _stubbed_names

# lazy: `treadle doctor` checks rows as the server does, and must not need its web framework
__getattr__, __dir__, __all__ = _stubbed_names(__name__, __file__, globals())
