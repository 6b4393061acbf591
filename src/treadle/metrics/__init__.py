"""The numbers that workers measure of their jobs: counts and a sample of times for each minute, queue and task.

Metrics are telemetry, never truth: a killed worker loses the last seconds of them, and no decision reads them.
"""

from treadle.core.lazy_names import stubbed_names as _stubbed_names

__getattr__, __dir__, __all__ = _stubbed_names(__name__, __file__, globals())
