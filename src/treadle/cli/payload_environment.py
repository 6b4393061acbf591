"""The app of a command that names none: its storage URL, and how texts are stored, from the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from treadle.core.errors import BadOption

if TYPE_CHECKING:
    from treadle.app import App

OFFLOAD: Final = "TREADLE_OFFLOAD"
KEYS: Final = "TREADLE_KEYS"


def app_at(url: str | None) -> App:
    """An app without tasks on this storage; None: on the default one. Raises BadOption and BadUrl."""
    from treadle.app import App

    return App(url, **payload_options())


def payload_options(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The arguments `blobs`, `offload`, `keys` and `redact` of an App that the environment gives. Raises BadOption."""
    options: dict[str, Any] = {}
    if blobs := environment.get("TREADLE_BLOBS", "").strip():
        options["blobs"] = blobs
    if offload := environment.get(OFFLOAD, "").strip():
        if not (offload.isascii() and offload.isdigit()):
            raise BadOption(OFFLOAD, f"expected a number of bytes, found {offload[:40]!r}")
        options["offload"] = int(offload[:20])
    if environment.get(KEYS, "").strip():
        from treadle.serialization import Keys

        options["keys"] = Keys.from_environment(KEYS)
    if names := [name for name in re.split(r"[\s,]+", environment.get("TREADLE_REDACT", "")) if name]:
        options["redact"] = names
    return options
