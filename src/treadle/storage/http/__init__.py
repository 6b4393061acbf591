"""A Treadle server as the storage: `App("https://jobs.example.org")`."""

from treadle.storage.http.storage import HttpStorage

__all__ = ["HttpStorage"]
