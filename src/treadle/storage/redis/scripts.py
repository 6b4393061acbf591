"""The scripts, one for each verb, put together from the files in `lua/`.

Without it each verb would be several commands, and another caller could come between them. The shared pieces are made
when the verb calls `slowly()`: who gets along without them is spared the 20 us that it takes.
"""

from __future__ import annotations

import functools
import hashlib
from importlib.resources import files
from typing import Final

from msgspec import Struct

from treadle.storage.constants import filled

SHARED: Final = ("row", "book", "admit", "endings")
NEEDS: Final[dict[str, tuple[str, ...]]] = {  # what `slowly()` makes
    "enqueue": (*SHARED, "tend"),  # for the claim of a worker that waits
    "store": SHARED,
    "claim": (*SHARED, "tend"),
    "settle": (*SHARED, "reopen"),
    "settle_claim": (*SHARED, "reopen", "tend"),
    "heartbeat": (*SHARED, "tend"),
    "limits": (*SHARED, "facts"),
    "prune": (*SHARED, "tend"),
    "load": (*SHARED, "carry", "facts"),
    "move": (),
    "unload": (*SHARED, "carry"),
    "leave": (*SHARED, "carry"),
    "take": (*SHARED, "carry"),
    "peek": (*SHARED, "tend"),
    "plant": ("row",),
    "intend": (),
    "over": (),
    "sent": (),
    "sweep": (),
    "look": (),
    "walk": (),
    "ended": (),
    "tally": (),
    "rates": SHARED,
    "rights": (),
    "tidy": SHARED,
    "recount": SHARED,
}
# Several in one script, one after the other. Their answers are joined, each after its length: for every list in an
# answer the server sets 16 KB aside, for which glibc's allocator tidies up all that it has.
FUSED: Final = {"settle_claim": ("settle", "claim")}
HANDS: Final = ("enqueue",)  # may make a claim for a worker that waits, and needs for it what a claim needs
BEFORE: Final[dict[str, tuple[str, ...]]] = {  # what the verb begins with
    "enqueue": ("part",),
    "store": ("part",),
    "walk": ("spot",),
    "tally": ("spot",),
    "ended": ("spot", "packs"),
    "prune": ("packs",),
    "load": ("mark",),
    "move": ("mark",),
    "claim": ("spot",),
}


BEHIND: Final[dict[str, tuple[str, ...]]] = {"claim": ("line",)}  # and what it goes on with


class Script(Struct, frozen=True):
    text: bytes
    sha: bytes


@functools.cache
def load() -> dict[str, Script]:
    """Every verb's script by its name."""
    return {verb: _script(verb, pieces) for verb, pieces in NEEDS.items()}


def _script(verb: str, pieces: tuple[str, ...]) -> Script:
    words = _read("words")
    if verb in HANDS:
        # The pieces are made when somebody asks; what is open around them is named anew there, see `words.lua`.
        steps = words, _read("ask"), _slowly(pieces), "local function claim()\n", _text("claim"), "end\n", _read("hand")
        own = f"local function handed(queue)\n{''.join(steps)}end\n{_text(verb)}"
    elif pieces:
        # Each verb is a function of its own: what it makes finds its names above in one step, and not by looking along
        # all that the script has open (4 us a claim).
        run = "(function()\n{}end)()".format
        if verb in FUSED:
            own = "local all = {}\n" + "".join(f"join(all, {run(_text(each))})\n" for each in FUSED[verb])
        else:
            own = f"local all = {run(_text(verb))}\n"
        own = f"local asked\n{_slowly(pieces)}{own}pay()\nreturn all\n"
    else:
        own = _text(verb)
    text = f"{words}{_read('base')}{own}".encode()
    return Script(text, hashlib.sha1(text, usedforsecurity=False).hexdigest().encode())


def _slowly(pieces: tuple[str, ...]) -> str:
    shared = "".join(map(_read, pieces))
    return f"local R, B, A, E, T, O, C, F\nlocal function slowly()\npay()\nquiet = nil\n{_read('words')}{shared}end\n"


def _text(verb: str) -> str:
    return "".join(map(_read, (*BEFORE.get(verb, ()), verb, *BEHIND.get(verb, ()))))


def _read(name: str) -> str:
    return filled(files("treadle.storage.redis").joinpath("lua", f"{name}.lua").read_text("utf-8"))
