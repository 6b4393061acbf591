"""Treadle: background jobs that cannot be lost.

app = App()

@app.task
async def send(to: str) -> int: ...

job = await send.enqueue("a@x.org")
"""

from treadle.core.lazy_names import stubbed_names as _stubbed_names

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = _stubbed_names(__name__, __file__, globals())
