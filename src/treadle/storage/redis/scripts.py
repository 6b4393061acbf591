"""Assembles the scripts, one for each verb, from the files in `lua/`.

One script for each verb makes the verb atomic. The shared pieces are defined only when the verb calls
`define_shared()`, which takes 20 us; the bulk path does without them.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from importlib.resources import files
from typing import Final

from msgspec import Struct

from treadle.storage.constants import filled

SHARED: Final = ("whole", "row", "kinds", "unit_of_work", "admission", "endings")
NEEDS: Final[dict[str, tuple[str, ...]]] = {  # the pieces that `define_shared()` defines, for verbs with any
    "enqueue": (*SHARED, "advance_due"),  # for the claim of a hand-off
    "store": (*SHARED, "new_jobs"),
    "claim": (*SHARED, "advance_due"),
    "settle": (*SHARED, "new_jobs", "reopen", "costs"),
    "settle_claim": (*SHARED, "new_jobs", "reopen", "costs", "advance_due"),
    "heartbeat": (*SHARED, "advance_due"),
    "limits": (*SHARED, "limit_facts"),
    "prune": (*SHARED, "advance_due"),
    "load": (*SHARED, "transfer", "limit_facts"),
    "unload": (*SHARED, "transfer"),
    "relocate_out": (*SHARED, "transfer"),
    "relocate_in": (*SHARED, "transfer"),
    "peek": (*SHARED, "advance_due"),
    "pointers": ("whole", "row"),
    "read_rates": SHARED,
    "tidy": SHARED,
    "slots": SHARED,
    "relist": ("whole", "row", "kinds"),
}
# Verbs that run one after the other in one script. Their answers are joined into one list, each after its length. A
# list for each would cost an allocation of 16 KB, for which glibc's allocator consolidates all its free chunks.
FUSED: Final = {"settle_claim": ("settle", "claim")}
HANDS: Final = ("enqueue",)  # verbs with hand-off, which contain the claim and its pieces
FILES: Final[dict[str, tuple[str, ...]]] = {  # the files of a verb that has more than its own, in this order
    "enqueue": ("part", "bounds", "enqueue"),
    "store": ("part", "bounds", "shed", "store"),
    "claim": ("members_before", "claim", "leasing", "claim_plain", "claim_queues"),
    "settle": ("settle", "settle_rows"),
    "read_rows": ("whole", "read_rows"),
    "read_page": ("whole", "members_before", "read_page"),
    "read_ended": ("whole", "members_before", "packs", "read_ended"),
    "running": ("whole", "members_before", "entries_after", "running"),
    "count_ahead": ("members_before", "count_ahead"),
    "recount": ("members_before", "entries_after", "recount"),
    "relist": ("members_before", "entries_after", "relist"),
    "prune": ("packs", "prune"),
    "move": ("move_mark", "move"),
    "load": ("move_mark", "metrics", "load"),
    "keep_metrics": ("metrics", "keep_metrics"),
    "read_metrics": ("metrics", "read_metrics"),
}


class Script(Struct, frozen=True):
    text: bytes
    sha: bytes


class _Scripts(dict[str, Script]):
    def __missing__(self, verb: str) -> Script:
        script = self[verb] = _script(verb)
        return script


@functools.cache
def load() -> Mapping[str, Script]:
    """The script of each verb, by its name. Each is assembled when it is first run, but all files are read now: an
    upgrade of the package must not mix its files with those of a running process."""
    _files()
    return _Scripts()


def _script(verb: str) -> Script:
    pieces, read = NEEDS.get(verb, ()), _files().__getitem__
    keys, counts = read("keys"), read("write_counts")
    if verb in HANDS:
        # The pieces are defined only if a hand-off was requested. They declare the names of `keys.lua` again.
        claim = f"local function claim()\n{_text('claim')}end\n"
        steps = keys, read("open_claim"), _shared(pieces), claim, read("hand_off")
        own = f"local function hand_off(queue)\n{''.join(steps)}end\n{_text(verb)}{counts}return answer\n"
    elif pieces:
        # Each verb is its own function, so that its closures capture names directly instead of searching all open names
        # of the script (4 us a claim).
        run = "(function()\n{}end)()".format
        if verb in FUSED:
            own = "local all = {}\n" + "".join(f"append_answer(all, {run(_text(part))})\n" for part in FUSED[verb])
        else:
            own = f"local all = {run(_text(verb))}\n"
        own = f"local open_claim\n{_shared(pieces)}{own}write_slots()\n{counts}return all\n"
    else:
        own = _text(verb)
    text = f"{keys}{read('base')}{own}".encode()
    return Script(text, hashlib.sha1(text, usedforsecurity=False).hexdigest().encode())


def _shared(pieces: tuple[str, ...]) -> str:
    """The pieces as a function. Each keeps its functions in one table."""
    modules = "local Row, Unit, Admission, Endings, NewJobs, Due, Reopen, Costs, Transfer, Facts, Kinds\n"
    texts = "".join(map(_files().__getitem__, ("keys", *pieces)))
    return f"{modules}local function define_shared()\nwrite_slots()\nnothing_rare = nil\n{texts}end\n"


def _text(verb: str) -> str:
    return "".join(_row_path() if name == "leasing" else _files()[name] for name in FILES.get(verb, (verb,)))


def _row_path() -> str:
    """The functions of a claim's per-row path, defined when the first job needs them."""
    head = "if Unit then return end\ndefine_shared()\n"
    return f"local Leasing\nlocal function use_row_path()\n{head}{_files()['leasing']}end\n"


@functools.cache
def _files() -> Mapping[str, str]:
    folder = files("treadle.storage.redis").joinpath("lua")
    return {path.name.removesuffix(".lua"): filled(path.read_text("utf-8")) for path in folder.iterdir()}
