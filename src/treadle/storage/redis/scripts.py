"""Assembles the scripts, one for each verb, from the files in `lua/`.

One script for each verb makes the verb atomic. The shared pieces are defined only when the verb calls `slowly()`, which
takes 20 us; the bulk path does without them.
"""

from __future__ import annotations

import functools
import hashlib
from importlib.resources import files
from typing import Final

from msgspec import Struct

from treadle.storage.constants import filled

SHARED: Final = ("row", "kinds", "book", "admit", "endings")
NEEDS: Final[dict[str, tuple[str, ...]]] = {  # the pieces that `slowly()` defines
    "enqueue": (*SHARED, "advance_due"),  # for the claim of a hand-off
    "store": SHARED,
    "claim": (*SHARED, "advance_due"),
    "settle": (*SHARED, "reopen"),
    "settle_claim": (*SHARED, "reopen", "advance_due"),
    "heartbeat": (*SHARED, "advance_due"),
    "limits": (*SHARED, "facts"),
    "prune": (*SHARED, "advance_due"),
    "load": (*SHARED, "carry", "facts"),
    "move": (),
    "unload": (*SHARED, "carry"),
    "relocate_out": (*SHARED, "carry"),
    "relocate_in": (*SHARED, "carry"),
    "peek": (*SHARED, "advance_due"),
    "pointers": ("row",),
    "intend": (),
    "completed": (),
    "sent": (),
    "sweep": (),
    "look": (),
    "walk": (),
    "ended": (),
    "stats": (),
    "rates": SHARED,
    "rights": (),
    "tidy": SHARED,
    "slots": SHARED,
    "recount": (),
    "compare": (),
    "relist": ("row", "kinds"),
    "glance": (),
    "blocked": (),
    "members": (),
    "running": (),
    "ahead": (),
    "keep_metrics": (),
    "read_metrics": (),
}
# Verbs that run one after the other in one script. Their answers are joined into one list, each after its length. A
# list for each would cost an allocation of 16 KB, for which glibc's allocator consolidates all its free chunks.
FUSED: Final = {"settle_claim": ("settle", "claim")}
HANDS: Final = ("enqueue",)  # verbs with hand-off, which contain the claim and its pieces
BEFORE: Final[dict[str, tuple[str, ...]]] = {  # the files in front of the verb's own
    "enqueue": ("part", "bounded"),
    "store": ("part", "bounded", "shed"),
    "walk": ("spot",),
    "recount": ("spot",),
    "glance": ("overview",),
    "stats": ("overview",),
    "ended": ("spot", "packs"),
    "prune": ("packs",),
    "load": ("mark", "metrics"),
    "keep_metrics": ("metrics",),
    "read_metrics": ("metrics",),
    "running": ("spot",),
    "ahead": ("spot",),
    "relist": ("spot",),
    "move": ("mark",),
    "claim": ("spot",),
}


BEHIND: Final[dict[str, tuple[str, ...]]] = {"claim": ("line",)}  # the files after the verb's own


class Script(Struct, frozen=True):
    text: bytes
    sha: bytes


@functools.cache
def load() -> dict[str, Script]:
    """The script of each verb, by its name."""
    return {verb: _script(verb, pieces) for verb, pieces in NEEDS.items()}


def _script(verb: str, pieces: tuple[str, ...]) -> Script:
    words = _read("words")
    if verb in HANDS:
        # The pieces are defined only if a hand-off was requested. They declare the names of `words.lua` again.
        steps = words, _read("ask"), _slowly(pieces), "local function claim()\n", _text("claim"), "end\n", _read("hand")
        own = f"local function handed(queue)\n{''.join(steps)}end\n{_text(verb)}{_read('counted')}return known\n"
    elif pieces:
        # Each verb is its own function, so that its closures capture names directly instead of searching all open names
        # of the script (4 us a claim).
        run = "(function()\n{}end)()".format
        if verb in FUSED:
            own = "local all = {}\n" + "".join(f"join(all, {run(_text(each))})\n" for each in FUSED[verb])
        else:
            own = f"local all = {run(_text(verb))}\n"
        own = f"local asked\n{_slowly(pieces)}{own}pay()\n{_read('counted')}return all\n"
    else:
        own = _text(verb)
    text = f"{words}{_read('base')}{own}".encode()
    return Script(text, hashlib.sha1(text, usedforsecurity=False).hexdigest().encode())


def _slowly(pieces: tuple[str, ...]) -> str:
    shared = "".join(map(_read, pieces))
    return (
        f"local R, B, A, E, T, O, C, F, K\nlocal function slowly()\npay()\nquiet = nil\n{_read('words')}{shared}end\n"
    )


def _text(verb: str) -> str:
    return "".join(map(_read, (*BEFORE.get(verb, ()), verb, *BEHIND.get(verb, ()))))


def _read(name: str) -> str:
    return filled(files("treadle.storage.redis").joinpath("lua", f"{name}.lua").read_text("utf-8"))
