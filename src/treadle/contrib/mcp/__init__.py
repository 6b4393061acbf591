"""Tools for assistants over the Model Context Protocol: what they see and do is what the HTTP API shows and does.

Needs `treadle[mcp]`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.contrib.mcp.calls import Rights
    from treadle.contrib.mcp.server import serve
else:
    from treadle.core.lazy_names import lazy_names

    # The command line reads the options of the command without these libraries.
    __getattr__, __dir__ = lazy_names(
        __name__, globals(), {"treadle.contrib.mcp.calls": ("Rights",), "treadle.contrib.mcp.server": ("serve",)}
    )

__all__ = ["Rights", "serve"]
