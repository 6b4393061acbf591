"""The signature of an error: what the errors of one cause have in common.

It is the first line of the error, with everything replaced that differs from job to job. Pure, and bounded: it looks at
500 characters, and every repetition in a pattern has a maximum.
"""

from __future__ import annotations

import re
from typing import Final

from treadle.core.errors import error_line

LONGEST: Final = 500  # characters of an error that are read
SHOWN: Final = 200  # characters of a signature

# Kept, because they tell causes apart: names with a number in them, status codes, error numbers, and the names in
# errors about code and schemas.
_KEPT: Final = re.compile(
    r"\b(?:utf-(?:8|16|32)|iso-8859-\d{1,2}|sha\d{1,3}|md5|HTTP/\d(?:\.\d)?|TLSv\d(?:\.\d)?|IPv[46])\b"
    r"|\[(?:Errno|WinError) -?\d{1,5}\]"
    r"|^[\w.]{1,100}Error: \d{3}\b"
    r"|\b(?:HTTP|status|status code|exit code|code|errno)[ :=]{1,2}-?\d{1,5}\b"
    r"|\b(?:attribute|name|named|argument:|argument|constraint|column|relation|table|index|module) "
    r"""(?:'[A-Za-z_.]{1,60}'|"[A-Za-z_.]{1,60}")"""
    r"|'[A-Za-z_.]{1,60}'(?= (?:object has|codec can't))",
    re.IGNORECASE,
)
_DIGITS: Final = re.compile(r"\d")
_HEX: Final = "[0-9A-Fa-f]"
# (a character without which the pattern cannot match, the pattern, the replacement), in order: a pattern sees what
# those before it have left.
NOISE: Final[tuple[tuple[str, re.Pattern[str], str], ...]] = (
    ("://", re.compile(r"\b[a-z][a-z0-9+.-]{1,20}://[^\s'\"<>)\]]{1,400}"), "<url>"),
    ("@", re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}"), "<email>"),
    ("-", re.compile(rf"\b{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}\b"), "<id>"),
    (
        "-",
        re.compile(r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)?)?"),
        "<time>",
    ),
    ("0x", re.compile(rf"\b0x{_HEX}{{1,32}}\b"), "<address>"),
    ("'", re.compile(r"(?<!\w)'(?:[^'\\]|\\.){0,400}'(?!\w)"), "<text>"),
    ('"', re.compile(r'"(?:[^"\\]|\\.){0,400}"'), "<text>"),
    ("`", re.compile(r"`[^`]{0,400}`"), "<text>"),
    (".", re.compile(r"\b\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}(?::\d{1,5})?\b"), "<host>"),
    ("[", re.compile(rf"\[{_HEX}{{0,4}}(?::{_HEX}{{0,4}}){{2,7}}\](?::\d{{1,5}})?"), "<host>"),
    (":", re.compile(r"\b((?:[\w-]{1,63}\.){1,8}[A-Za-z]{2,24}|localhost):\d{1,5}\b"), r"\1:<port>"),
    ("/", re.compile(r"(?<![\w<])(?:[A-Za-z]:)?(?:/[\w.@%~+-]{1,255}){2,40}/?(?:\?[^\s)'\"]{0,400})?"), "<path>"),
    ("\\", re.compile(r"(?<![\w<])(?:[A-Za-z]:)?(?:\\[\w.@%~+-]{1,255}){2,40}"), "<path>"),
    ("", re.compile(rf"\b(?=[0-9a-f]{{0,63}}\d){_HEX}{{12,64}}\b"), "<id>"),
    ("", re.compile(r"(?<![\w.])[-+]?\d[\d_,]{0,40}(?:\.\d{1,40})?(?:[eE][-+]?\d{1,4})?%?"), "<n>"),
    ("", re.compile(r"(?<=[A-Za-z_])\d{3,40}"), "<n>"),
)


def signature(error: str | None) -> str:
    """The signature of a stored error, at most 200 characters; "" for none."""
    line = " ".join(error_line(error)[:LONGEST].split()).replace("\x00", "")
    kept: list[str] = []

    def keep(match: re.Match[str]) -> str:
        kept.append(match[0])
        return f"\x00{chr(0xE000 + len(kept) - 1)}\x00"

    line = _KEPT.sub(keep, line)
    for sign, pattern, word in NOISE:
        if sign in line if sign else _DIGITS.search(line) is not None:
            line = pattern.sub(word, line)
    for number, text in enumerate(kept):
        line = line.replace(f"\x00{chr(0xE000 + number)}\x00", text)
    return line if len(line) <= SHOWN else f"{line[: SHOWN - 3]}..."
