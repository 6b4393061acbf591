"""`App`: the tasks of a program, the storage of their jobs, and the groups of calls that users see."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.app.app import App
else:
    from treadle.core.lazy_names import lazy_names

    __getattr__, __dir__ = lazy_names(__name__, globals(), {"treadle.app.app": ("App",)})

__all__ = ["App"]
