"""`treadle from celery`: moves what is certain of a Celery program to Treadle, and lists the rest.

A task moves with all of its uses, or stays with all of them, so the program runs after every run of the command.
"""

from __future__ import annotations

from treadle.contrib.celery.files import NotWritten, check_tree, write
from treadle.contrib.celery.model import GUIDE, UNREAD, Finding
from treadle.contrib.celery.plan import Plan, plan
from treadle.contrib.celery.report import as_json, as_text, diff

__all__ = [
    "GUIDE",
    "UNREAD",
    "Finding",
    "NotWritten",
    "Plan",
    "as_json",
    "as_text",
    "check_tree",
    "diff",
    "plan",
    "write",
]
