"""Resources of a process and of a run: the lifespan of an app, and the dependencies of its tasks."""

from treadle.core.lazy_names import stubbed_names as _stubbed_names

__getattr__, __dir__, __all__ = _stubbed_names(__name__, __file__, globals())
