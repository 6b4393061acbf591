"""The parts of a URL and of a sender's text that may be shown."""

import json

import pytest

from treadle.core.payload_redaction import Redaction
from treadle.core.redaction import in_json, in_line, origin, shown, visible, without_secrets

SECRET = "hunter2secret"

URLS = {
    f"postgresql://u:{SECRET}@127.0.0.1:1/db": "postgresql://u:***@127.0.0.1:1/db",
    f"postgresql://u:{SECRET}%23x@h/db": "postgresql://u:***@h/db",
    f"postgresql://h:1/db?user=u&password={SECRET}": "postgresql://h:1/db?user=u&password=***",
    f"postgresql://u:{SECRET}@@127.0.0.1:1/db": "postgresql://u:***@127.0.0.1:1/db",
    f"redis://:{SECRET}@127.0.0.1:1/0?ns=a": "redis://:***@127.0.0.1:1/0?ns=a",
    f"redis+sentinel://u:{SECRET}@a:1,b:2/main": "redis+sentinel://u:***@a:1,b:2/main",
    f"http://u:{SECRET}@h:1/jobs?token={SECRET}#{SECRET}": "http://***@h:1/jobs?token=***",
    f"https://{SECRET}@h/": "https://***@h/",
    f"mysql://u:{SECRET}@h/db": "mysql://u:***@h/db",
    # A character of the password is not percent-encoded, so the beginning of the host is unknown.
    f"postgresql://u:p#{SECRET}@h/db": "postgresql://...",
    f"postgresql://u:1/{SECRET}@h/db": "postgresql://...",
    f"postgresql://u:1?{SECRET}@h/db": "postgresql://...",
    f"redis://u:{SECRET}@127.0.0.1:bad/0": "redis://...",
    f"postgres://u:{SECRET}@[::1/db": "postgres://...",
    f"redis://u:{SECRET}": "redis://...",
    f"redis://h/0?password=a&{SECRET}": "redis://h/0?password=***&***=***",
    f"mysql:u:{SECRET}": "mysql:...",
    f"sqlite://u:{SECRET}@h/a.db": "sqlite://u:***@h/a.db",
    f"sqlite://u:{SECRET}/a@b.db": "sqlite://...",
    f"host=h password={SECRET}": "...",
    # Parts that are not secret are shown, because people need them.
    "postgresql://ann@[::1]:5432/db?schema=x&pool=3": "postgresql://ann@[::1]:5432/db?schema=x&pool=3",
    "sqlite:////var/a@b/jobs.db?synchronous=full": "sqlite:////var/a@b/jobs.db?synchronous=full",
    "jobs.db": "jobs.db",
    "memory://": "memory://",
    "redis://h\x1b]0;owned\x07/0": "redis://...",
    "sqlite:///a\x1b.db": "sqlite:///a\\x1b.db",
}


@pytest.mark.parametrize("url", URLS)
def test_a_url_is_shown_without_its_secrets(url: str) -> None:
    assert SECRET not in shown(url)
    assert shown(url) == URLS[url]


TEXTS = {
    "mysql --password hunter2 -h db": "mysql --password *** -h db",
    "mysql -p 'hunter2 x' db": "mysql -p *** db",
    "['mysql', '--db-password', 'hunter2', '-p', 'hunter2']": "['mysql', '--db-password', ***, '-p', ***]",
    "postgres://app:hunter2@db/x, https://hunter2@h/x": "postgres://app:***@db/x, https://***@h/x",
    "amqp://:p@hunter2@h, redis://u:p/hunter2@h:1/0": "amqp://:***@h, redis://u:***@h:1/0",
    "sent Basic aHVudGVyMjpodW50ZXIy to h": "sent Basic *** to h",
    # No secrets.
    (plain := "Basic authentication of https://h:1/@user, top-p 0.9, a@b.org"): plain,
}


@pytest.mark.parametrize("text", TEXTS)
def test_secrets_without_a_key_are_hidden_in_texts_and_in_values(text: str) -> None:
    assert without_secrets(text) == TEXTS[text]
    assert json.loads(bytes(Redaction().json({"said": [text]}))) == {"said": [TEXTS[text]]}


def test_control_characters_are_made_visible() -> None:
    hostile = "a\x1b[31m\r\n\x07\x7f\x9b\u202eb\ud800\té"
    assert visible(hostile) == "a\\x1b[31m\\r\n\\x07\\x7f\\x9b\\u202eb\\ud800\té"
    assert in_line(hostile) == "a\\x1b[31m\\r\\n\\x07\\x7f\\x9b\\u202eb\\ud800\\té"
    assert json.loads(in_json(json.dumps(["\x9b\u202e"], ensure_ascii=False))) == ["\x9b\u202e"]


def test_an_origin_is_scheme_host_and_port() -> None:
    assert origin("HTTP://Host:80/x") == origin("http://host") == "http://host"
    assert origin("https://h:443") != origin("http://h:443")
    assert origin("http://u:p@[::1]:7373/x") == "http://[::1]:7373"
    for url in ("ftp://h", "http://", "http://h:port", "http://[::1"):
        with pytest.raises(ValueError, match=r"."):
            origin(url)
