"""Removes secrets from URLs and control characters from texts, for messages, logs and terminals.

All code that prints a URL or a text of a sender must use these functions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urljoin, urlsplit

SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}")
NAME: Final = re.compile(r"[A-Za-z_]{1,40}")  # of an option; a password may have an unquoted `&`
PATH: Final = re.compile(r"[\w./\\ -]{0,255}")  # a file name given instead of a URL
HOSTS: Final = re.compile(r"((\[[0-9A-Fa-f:.]*\]|[\w.%~-]*)(:\d*)?)(,(\[[0-9A-Fa-f:.]*\]|[\w.%~-]*)(:\d*)?)*")
FILES: Final = ("sqlite", "memory", "file")  # no passwords; the file name may contain any character
WEB: Final = ("http", "https")  # the user name may be the token

# Options whose values identify a storage or set its behaviour. All other values may be secrets.
HARMLESS: Final = frozenset(
    {
        "ns",
        "shards",
        "schema",
        "pool",
        "timeout",
        "prepare",
        "synchronous",
        "shared",
        "db",
        "user",
        "host",
        "port",
        "dbname",
        "sslmode",
        "connect_timeout",
        "region",
        "ca",
        "max_answer",
    }
)

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
    rf"[bru]{{0,2}}(?P<{name}>\\{{0,16}}){sign}(?:[^{sign}\\\n]+|(?!(?P={name}){sign})\\+{sign}?)*(?:(?P={name}){sign})?"
    for name, sign in (("two", '"'), ("one", "'"))
)
BARE: Final = r"(?:(?:Bearer|Basic|Digest|Token|ApiKey)\s{1,9})?[^\s\"',;&)}\]]+"

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
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", "surrogatepass").decode("ascii")


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
    place, mark, query = rest.partition("#")[0].partition("?")
    authority, slash, path = place.partition("/")
    if scheme.lower() in FILES and not authority:
        return in_line(f"{scheme}://{place}{_options(mark, query)}")
    who, at, hosts = authority.rpartition("@")
    # An unquoted `/`, `#` or `?` in a password ends the authority early: the apparent path may be part of the password.
    if "@" in rest[len(authority) :] or not HOSTS.fullmatch(hosts):
        return f"{scheme}://..."
    return in_line(f"{scheme}://{_user(scheme, who)}{at}{hosts}{slash}{path}{_options(mark, query)}")


def _user(scheme: str, who: str) -> str:
    user, colon, _ = who.partition(":")
    return "***" if scheme.lower() in WEB and who else f"{user}:***" if colon else user


def _options(mark: str, query: str) -> str:
    words = [
        (name if NAME.fullmatch(name) else "***", value if name in HARMLESS else "***")
        for name, value in parse_qsl(query, keep_blank_values=True)
    ]
    return mark + urlencode(words, quote_via=quote, safe="*/:@") if words else ""


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


def in_text(words: Sequence[str]) -> re.Pattern[str]:
    """Matches `password=...`, `"api_key": "..."`, `Authorization: Bearer ...`, in time proportional to the text.

    A value in quotes ends at a quote with as many backslashes as the first one, so JSON within JSON texts is covered.
    """
    return re.compile(
        rf"(?P<key>(?:(?P<header>authorization|cookie)|{'|'.join(map(re.escape, words))})[\w-]{{0,40}}"
        rf"(?P<quoted>\\{{0,16}}[\"'])?)(?P<sign>\s{{0,9}}(?::=|=>|=|(?P<colon>:))\s{{0,9}})"
        rf"(?:{QUOTED}|\[[^\]\n]*\]?|\{{[^}}\n]*\}}?|\([^)\n]*\)?"
        rf"|(?(quoted){BARE}|(?(header)(?(colon)[^\n]+|{BARE})|{BARE})))",
        re.IGNORECASE,
    )


def masked(found: re.Match[str]) -> str:
    """The replacement for a match of `in_text`."""
    return f"{found['key']}{found['sign']}{HIDDEN}"


_SECRETS: Final = in_text(WORDS)


def without_secrets(text: str) -> str:
    """The text with the values hidden that follow such a name."""
    return _SECRETS.sub(masked, text)
