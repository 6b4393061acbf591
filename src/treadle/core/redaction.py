"""Removes secrets from URLs and control characters from texts, for messages, logs and terminals.

All code that prints a URL or a text of a sender must use these functions.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urljoin, urlsplit

SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}")
NAME: Final = re.compile(r"[A-Za-z_]{1,40}")  # the name of an option; a password may have an unquoted `&`
PATH: Final = re.compile(r"[\w./\\ -]{0,255}")  # a file name given instead of a URL
HOSTS: Final = re.compile(r"((\[[0-9A-Fa-f:.]*\]|[\w.%~-]*)(:\d*)?)(,(\[[0-9A-Fa-f:.]*\]|[\w.%~-]*)(:\d*)?)*")
FILES: Final = ("sqlite", "memory", "file")  # have no passwords; the file name may contain any character
WEB: Final = ("http", "https")  # the user name may be the token

# Options whose values identify a storage or set its behaviour. All other values may be secrets.
_HARMLESS = (
    "ns shards schema pool timeout prepare synchronous shared db user host port dbname "
    "sslmode connect_timeout region ca max_answer"
)
HARMLESS: Final = frozenset(_HARMLESS.split())

HIDDEN: Final = "***"
# Parts of the names of values that are secret.
WORDS: Final = (
    "password",
    "passwd",
    "secret",
    "token",
    "authorization",
    "api_key",
    "apikey",
    "api-key",
    "cookie",
    "ssn",
)

# Values after such a name in a text: in quotes, which may be escaped, or up to a space or a closing sign. A header has
# the rest of its line as its value, because it may have several parts.
QUOTED: Final = "|".join(
    rf"[bru]{{0,2}}(?P<{name}>\\{{0,16}}){sign}(?-i:[^{sign}\\\n]+|(?!(?P={name}){sign})\\+{sign}?)*(?:(?P={name}){sign})?"
    for name, sign in (("two", '"'), ("one", "'"))
)
BARE: Final = r"(?:(?:Bearer|Basic|Digest|Token|ApiKey)\s{1,9})?(?-i:[^\s\"',;&)}\]]+)"

# The authority of a URL up to its last `@`; passwords may have one, and "/". "://" ends it, so no part is read twice.
CREDENTIALS: Final = r"""://(?P<who>(?:(?:(?!://)[^\s"'<>@]){0,256}+@)+)"""
BASIC: Final = r"\bBasic\s{1,9}(?P<pair>[A-Za-z0-9+/_-]{4,2000}+={0,2})"

OWN: Final = r"(?<![\w-])(?P<own>trd_[A-Za-z0-9_-]{20,200})"  # a token of a server

# Where a text without a name may have a secret, each after plain letters that it begins with.
SIGNS: Final = tuple(
    (word, re.compile(rf"{word}{rest}"))
    for word, rest in (
        ("-p", r"(?![\w-])(?<![\w-]-p)"),
        ("basic", r"\s(?<!\wbasic\s)"),
        ("trd_", r"(?<![\w-]trd_)(?=[a-z0-9_-]{20})"),
    )
)
BEFORE_AT: Final = re.compile(r"""://(?=(?:(?!://)[^\s"'<>@]){0,256}+@)""")
OF_NAME: Final = re.compile(r"[A-Za-z0-9_\-\w]*")  # the plain letters first: they are five times as fast

ROOM: Final = 240  # units of Effort that each row has: 70 us
EACH: Final = 20  # bytes of a row for one more unit
PLACE: Final = 4  # units of a place where a secret may be

# Control characters, characters that change the direction of text, and lone surrogates; not line ends and tabs.
_CONTROLS: Final = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff"
_UNSEEN: Final = re.compile(f"[{_CONTROLS}]")
_UNSEEN_IN_LINE: Final = re.compile(f"[{_CONTROLS}\t\n]")


def has_secret_name(name: str) -> bool:
    """Whether a value of this name is hidden by default."""
    plain = name.casefold()
    return any(word in plain for word in WORDS)


def visible(text: str) -> str:
    """The text with each control character as its escape, such as `\\x1b`; line ends and tabs stay."""
    return _UNSEEN.sub(_escape, text)


def in_line(text: str) -> str:
    """As `visible`, with line ends and tabs escaped too, so that the text stays on one line."""
    return _UNSEEN_IN_LINE.sub(_escape, text)


def in_json(document: str) -> str:
    """The JSON document with those control characters escaped that JSON permits in strings; its meaning is the same."""
    return _UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", document)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape", "surrogatepass").decode("ascii")


def shown(url: str) -> str:
    """A URL for messages: without the password, the fragment, and the values of options that may be secrets.

    The user name stays, except in http and https. If the text cannot be parsed for certain, only the scheme stays.
    """
    scheme, colons, rest = url.partition("://")
    if not colons:
        named = url.partition(":")[0]
        return in_line(url) if PATH.fullmatch(url) else f"{named}:..." if SCHEME.fullmatch(named) else "..."
    if not SCHEME.fullmatch(scheme):
        return "..."
    if scheme.lower() in FILES and rest[:1] in ("", "/", "?"):  # `#` is part of the path
        file, mark, query = rest.partition("?")
        return in_line(f"{scheme}://{file}{_options(mark, query)}")
    place, mark, query = rest.partition("#")[0].partition("?")
    authority, slash, path = place.partition("/")
    who, sign, hosts = authority.rpartition("@")
    # An unquoted `/`, `#` or `?` in a password ends the authority early: the apparent path may be part of the password.
    if "@" in rest[len(authority) :] or not HOSTS.fullmatch(hosts):
        return f"{scheme}://..."
    return in_line(f"{scheme}://{_user(scheme, who)}{sign}{hosts}{slash}{path}{_options(mark, query)}")


def _user(scheme: str, who: str) -> str:
    user, colon, _ = who.partition(":")
    return "***" if scheme.lower() in WEB and who else f"{user}:***" if colon else user


def _options(mark: str, query: str) -> str:
    shown_options = [
        (name if NAME.fullmatch(name) else "***", value if name in HARMLESS else "***")
        for name, value in parse_qsl(query, keep_blank_values=True)
    ]
    return mark + urlencode(shown_options, quote_via=quote, safe="*/:@") if shown_options else ""


def origin(url: str) -> str:
    """Scheme, host and port of an http or https URL; the default port is left out. Raises ValueError."""
    parts = urlsplit(url)
    scheme, host, port = parts.scheme.lower(), (parts.hostname or "").lower(), parts.port
    if scheme not in WEB or not host:
        raise ValueError("expected a URL such as http://host:7373")
    named = f"[{host}]" if ":" in host else host
    return f"{scheme}://{named}" + ("" if port in (None, 443 if scheme == "https" else 80) else f":{port}")


def target(base: str, location: str | None) -> str:
    """The target of a redirect, for messages."""
    try:
        return shown(urljoin(base, location)) if location else "nowhere"
    except ValueError:
        return "an unreadable address"


def without(text: str, *secrets: str | None) -> str:
    """The text, for example an error of another library, without these secrets in plain and percent-encoded form."""
    for secret in filter(None, secrets):
        for form in sorted({secret, quote(secret, safe=""), quote(secret), unquote(secret)}, key=len, reverse=True):
            text = text.replace(form, "***")
    return text


class TooMuch(Exception):
    """A row has more places to look at than its size allows."""


class Effort:
    """The cost of hiding the secrets of one row, in units of 0.3 us: at most ROOM, and one for each EACH bytes. A row
    costs its readers at most three times as much as ordinary text of its size."""

    __slots__ = ("room",)

    def __init__(self, size: int) -> None:
        self.room = ROOM + size // EACH

    def spend(self, units: int) -> None:
        """Raises TooMuch."""
        self.room -= units
        if self.room < 0:
            raise TooMuch


class TextMask:
    """Hides values after these names in a text, with work bounded by its length.

    That is `password=...`, `"api_key": "..."`, `Authorization: Bearer ...`; options of a command line such as
    `--password X`, `-p X` and `'--token', 'X'`; the credentials of a URL; those after the word `Basic`; and tokens of
    Treadle. A value in quotes ends at a quote with as many backslashes as the first one, so JSON within JSON texts is
    covered.

    The pattern costs 0.2 us a character, so it is tried only where one of the words is: a search for the words costs
    5 ns.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._words = tuple(dict.fromkeys(map(folded, words)))
        names = "|".join(map(re.escape, words))
        flag = rf"(?P<flag>(?<![\w-])(?:-p(?![\w-])|--?(?:[\w-]{{0,40}}?)(?:{names})))"
        self.pattern = re.compile(
            rf"(?P<key>(?:{flag}|(?P<header>authorization|cookie)|{names})(?-i:[A-Za-z0-9_\-\w]{{0,40}}+)"
            rf"(?P<quoted>\\{{0,16}}[\"'])?)"
            rf"(?P<sign>\s{{0,9}}(?::=|=>|=|(?P<colon>:))\s{{0,9}}|(?(flag),?[ \t]{{1,9}}|(?!)))"
            rf"(?:{QUOTED}|(?-i:\[[^\]\n]*\]?|\{{[^}}\n]*\}}?|\([^)\n]*\)?)"
            rf"|(?(quoted){BARE}|(?(header)(?(colon)(?-i:[^\n]+)|{BARE})|{BARE})))"
            rf"|{CREDENTIALS}|{BASIC}|{OWN}",
            re.IGNORECASE,
        )

    def hidden(self, text: str, effort: Effort) -> str:
        """The text without secrets. Raises TooMuch."""
        parts, end = list[str](), 0
        for start in self._places(folded(text), effort):
            if start < end:
                continue
            match = self._option(text, end, start, effort) or self.pattern.match(text, start)
            if match is not None:
                effort.spend(PLACE)
                parts += text[end : match.start()], masked(match)
                end = match.end()
        return "".join([*parts, text[end:]]) if parts else text

    def _option(self, text: str, end: int, place: int, effort: Effort) -> re.Match[str] | None:
        """The option of a command line whose name has a word at this place."""
        before = text[max(end, place - 42) : place]
        if "-" not in before:
            return None
        effort.spend(2 * PLACE)
        run = OF_NAME.match(before[::-1])  # from the right: a search from the left tries each character
        start = place - (0 if run is None else run.end())
        if text[start] != "-":
            return None
        effort.spend(PLACE)
        return self.pattern.match(text, start)

    def may_have(self, text: str) -> bool:
        """Whether a secret may be in the text; `\0` between several texts keeps them apart."""
        plain = folded(text)
        for word in self._words:
            if word in plain:
                return True
        return any(word in plain for word, _ in SIGNS) or ("@" in plain and "://" in plain)

    def _places(self, plain: str, effort: Effort) -> list[int]:
        """Where a match begins or has its name, in order."""
        places = list[int]()
        for word in self._words:
            if word in plain:
                place = plain.find(word)
                while place >= 0:
                    effort.spend(PLACE)
                    places.append(place)
                    place = plain.find(word, place + 1)
        for word, sign in SIGNS:
            if word in plain:
                for match in sign.finditer(plain):
                    effort.spend(3 * PLACE)
                    places.append(match.start())
        if "@" in plain and "://" in plain:
            effort.spend(plain.count("://") * PLACE // 2)
            for match in BEFORE_AT.finditer(plain):
                effort.spend(3 * PLACE)
                places.append(match.start())
        return sorted(places)


def folded(text: str) -> str:
    """The text as a pattern compares it without case, in as many characters."""
    if text.isascii():
        return text.lower()
    return text.replace("\u0130", "i").lower().replace("\u0131", "i").replace("\u017f", "s")


def masked(match: re.Match[str]) -> str:
    """The replacement for a match of a `TextMask`."""
    if (who := match["who"]) is not None:
        return _without_user(match, who)
    if match["own"] is not None:
        return HIDDEN
    if (pair := match["pair"]) is not None:
        return f"{match[0][: -len(pair)]}{HIDDEN}" if _is_pair(pair) else match[0]
    return f"{match['key']}{match['sign']}{HIDDEN}"


def _without_user(match: re.Match[str], who: str) -> str:
    """The part of a URL up to the last `@`, without a password. An `@` in the path does not mark a user."""
    authority = re.split(r"[/?#]", who, maxsplit=1)[0]
    if "@" not in authority and HOSTS.fullmatch(authority):
        return match[0]
    before = match.string[max(0, match.start() - 31) : match.start()]
    scheme = re.search(r"[A-Za-z0-9+.-]*\Z", before)
    return f"://{_user(scheme[0] if scheme else '', who[:-1])}@"


def _is_pair(text: str) -> bool:
    """Whether this is a user and a password in base64, and no word such as in `Basic authentication`."""
    try:
        plain = base64.b64decode(
            text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4), "-_" if "-" in text or "_" in text else None
        )
        return ":" in (pair := plain.decode()) and pair.isprintable()
    except ValueError:
        return False


_SECRETS: Final = TextMask(WORDS)


def without_secrets(text: str) -> str:
    """The text, with `***` in place of each value that follows such a name; only `***` if the text has too many of
    these names."""
    try:
        return _SECRETS.hidden(text, Effort(len(text)))
    except TooMuch:
        return HIDDEN
