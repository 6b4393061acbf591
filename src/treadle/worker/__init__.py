"""Workers, which claim jobs, run them and settle their outcomes."""

from treadle.core.lazy_names import stubbed_names as _stubbed_names

__getattr__, __dir__, __all__ = _stubbed_names(__name__, __file__, globals())
