"""Worker processes under one supervisor, which starts, watches, replaces and stops them."""

from treadle.core.lazy_names import stubbed_names as _stubbed_names

__getattr__, __dir__, __all__ = _stubbed_names(__name__, __file__, globals())
