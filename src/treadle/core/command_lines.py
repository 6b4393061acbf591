"""The command lines that messages advise. Names in them are quoted for a shell: senders of jobs choose them.

In a Django project they are commands of `manage.py`, also in a web process and in the worker's children.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from typing import Final

# Commands that are groups of commands, and those in `treadle storage` that are.
GROUPS: Final = ("jobs", "limits", "queues", "schedules", "storage")
NESTED: Final = ("blobs", "keys", "relay")

# The variable with what the user types for `treadle`; child processes inherit it.
PROGRAM: Final = "_TREADLE_PROGRAM"
_COMMAND: Final = re.compile(r"(?:^|(?<=`))treadle (?P<words>[a-z]+(?=[ `]|$)[^`]*)")
_APP: Final = re.compile(r" (?:--app )?\[?(?:module:app|MODULE:APP)\]?(?=[ `]|$)")


def program() -> str:
    """The command that runs this program: `treadle`, or `python manage.py treadle`."""
    return os.environ.get(PROGRAM, "treadle")


def typed(text: str) -> str:
    """The text with its commands as the user types them here: `manage.py` knows the app, so it is not named."""
    project = os.environ.get(PROGRAM)
    return text if project is None else _COMMAND.sub(lambda match: f"{project} {_APP.sub('', match['words'])}", text)


def command(*words: str, options: Sequence[str] = ()) -> str:
    """A command line for a shell: commands, arguments and options. `--` precedes arguments that begin with a dash."""
    verbs = 1
    if words[0] in GROUPS:
        verbs = 3 if words[0] == "storage" and words[1] in NESTED else 2
    has_dash = any(word.startswith("-") for word in words[verbs:])
    line = [*words[:verbs], *options, "--", *words[verbs:]] if has_dash else [*words, *options]
    return typed(f"`treadle {shlex.join(line)}`")
