"""The command lines that messages advise. Names in them are quoted for a shell: senders of jobs choose them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

# Commands whose first word is that of a group.
GROUPS: Final = ("blobs", "jobs", "limits", "queues", "relay", "schedules", "workflows")


def command(*words: str, options: Sequence[str] = ()) -> str:
    """A command line for a shell: commands, arguments and options. `--` precedes arguments that begin with a dash."""
    verbs = 2 if words[0] in GROUPS else 1
    if any(word.startswith("-") for word in words[verbs:]):
        return f"`treadle {shlex.join([*words[:verbs], *options, '--', *words[verbs:]])}`"
    return f"`treadle {shlex.join([*words, *options])}`"
