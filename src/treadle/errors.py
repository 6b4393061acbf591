"""The errors of Treadle under the name by which programs, tracebacks and stored jobs know them.

They are defined in `treadle.core.errors`.
"""

from treadle.core.errors import *  # noqa: F403
from treadle.core.errors import __all__ as __all__
