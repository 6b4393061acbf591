"""The command lines that messages advise. Names in them are quoted for a shell: senders of jobs choose them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

# Commands that are groups of commands, and those in `treadle storage` that are.
GROUPS: Final = ("jobs", "limits", "queues", "schedules", "storage")
NESTED: Final = ("blobs", "keys", "relay")


def command(*words: str, options: Sequence[str] = ()) -> str:
    """A command line for a shell: commands, arguments and options. `--` precedes arguments that begin with a dash."""
    verbs = 1
    if words[0] in GROUPS:
        verbs = 3 if words[0] == "storage" and words[1] in NESTED else 2
    if any(word.startswith("-") for word in words[verbs:]):
        return f"`treadle {shlex.join([*words[:verbs], *options, '--', *words[verbs:]])}`"
    return f"`treadle {shlex.join([*words, *options])}`"
