"""The signature of an error: equal for errors of one cause, different for different causes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.admin.failure_groups import SHOWN, signature

SAME = [
    (
        "requests.exceptions.ConnectionError: HTTPConnectionPool(host='api.example.org', port=80): Max retries "
        "exceeded with url: /v1/users/{n}?key=a{n}b (Caused by NewConnectionError('<urllib3.connection."
        "HTTPConnection object at 0x7f9a1c0b{n}>: [Errno 111] Connection refused'))",
        "requests.exceptions.ConnectionError: HTTPConnectionPool(host=<text>, port=<n>): Max retries exceeded with "
        "url: <path> (Caused by NewConnectionError(<text>))",
    ),
    (
        "requests.exceptions.HTTPError: 404 Client Error: Not Found for url: https://api.example.org/v1/users/{n}",
        "requests.exceptions.HTTPError: 404 Client Error: Not Found for url: <url>",
    ),
    (
        "sqlalchemy.exc.IntegrityError: (psycopg2.errors.UniqueViolation) duplicate key value violates unique "
        'constraint "users_email_key" DETAIL: Key (id)=({n}) already exists.',
        "sqlalchemy.exc.IntegrityError: (psycopg2.errors.UniqueViolation) duplicate key value violates unique "
        'constraint "users_email_key" DETAIL: Key (id)=(<n>) already exists.',
    ),
    (
        "sqlalchemy.exc.OperationalError: (sqlite3.OperationalError) database is locked",
        "sqlalchemy.exc.OperationalError: (sqlite3.OperationalError) database is locked",
    ),
    (
        'psycopg.OperationalError: connection to server at "10.0.0.7", port {n} failed: FATAL: too many connections',
        "psycopg.OperationalError: connection to server at <text>, port <n> failed: FATAL: too many connections",
    ),
    ("asyncio.exceptions.TimeoutError", "asyncio.exceptions.TimeoutError"),
    ("JobTimeout: job 0192f0a1-7d2c-7e4b-9c1a-3f0a1b2c{n} took 30.5 s", "JobTimeout: job <id> took <n> s"),
    (
        "json.decoder.JSONDecodeError: Expecting value: line {n} column 1 (char 0)",
        "json.decoder.JSONDecodeError: Expecting value: line <n> column <n> (char <n>)",
    ),
    ("KeyError: 'user_{n}'", "KeyError: <text>"),
    ("KeyError: {n}", "KeyError: <n>"),
    (
        "ValueError: invalid literal for int() with base 10: 'x{n}'",
        "ValueError: invalid literal for int() with base <n>: <text>",
    ),
    (
        "FileNotFoundError: [Errno 2] No such file or directory: '/var/spool/in/{n}.csv'",
        "FileNotFoundError: [Errno 2] No such file or directory: <text>",
    ),
    ("OSError: cannot open /srv/data/2026/part-{n}.parquet", "OSError: cannot open <path>"),
    (r"OSError: cannot open C:\data\2026\part-{n}.parquet", "OSError: cannot open <path>"),
    (
        "AttributeError: 'NoneType' object has no attribute 'id'",
        "AttributeError: 'NoneType' object has no attribute 'id'",
    ),
    (
        "TypeError: f() missing 1 required positional argument: 'x'",
        "TypeError: f() missing <n> required positional argument: 'x'",
    ),
    ("Refused: mail to jane.doe+{n}@mail.example.org refused", "Refused: mail to <email> refused"),
    (
        "aiohttp.client_exceptions.ClientConnectorError: Cannot connect to host smtp.example.org:{n} ssl:default",
        "aiohttp.client_exceptions.ClientConnectorError: Cannot connect to host smtp.example.org:<port> ssl:default",
    ),
    ("ConnectError: no route to 192.0.2.7:{n} and [2001:db8::7]:{n}", "ConnectError: no route to <host> and <host>"),
    ("Late: it's {n}% full at 2026-11-25T12:00:00.123Z", "Late: it's <n> full at <time>"),
    ("Declined: card {n} for order #A-{n} (EUR 12.50)", "Declined: card <n> for order #A-<n> (EUR <n>)"),
    ("GitError: commit 9f86d081884c7d659a2feaa0c55ad015a3b{n} not found", "GitError: commit <id> not found"),
    ("S3Error: status code 403, sha256 mismatch in part {n}", "S3Error: status code 403, sha256 mismatch in part <n>"),
    ("Conflict: user{n} has state2", "Conflict: user<n> has state2"),
]


@pytest.mark.parametrize(("text", "expected"), SAME)
def test_errors_of_one_cause_have_one_signature(text: str, expected: str) -> None:
    found = {signature(text.replace("{n}", number)) for number in ("1234", "9876")}
    assert found == {expected}


DIFFERENT = [
    ("HTTPError: 404 Client Error", "HTTPError: 503 Server Error"),
    ("OSError: [Errno 2] missing", "OSError: [Errno 13] missing"),
    ("AttributeError: 'A' object has no attribute 'x'", "AttributeError: 'A' object has no attribute 'y'"),
    ("S3Error: status code 403", "S3Error: status code 500"),
    ("ValueError: no", "TypeError: no"),
    ('IntegrityError: violates unique constraint "a"', 'IntegrityError: violates unique constraint "b"'),
    ("UnicodeError: bad utf-8", "UnicodeError: bad utf-16"),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_errors_of_different_causes_have_different_signatures(one: str, other: str) -> None:
    assert signature(one) != signature(other)


def test_the_first_line_of_a_stored_error_counts_and_the_last_of_a_bare_traceback() -> None:
    stored = 'KeyError: 7\n\nTraceback (most recent call last):\n  File "/srv/a.py", line 7, in f\nKeyError: 7\n'
    bare = 'Traceback (most recent call last):\n  File "/srv/a.py", line 9, in f\n    raise\nKeyError: 9\n'
    assert signature(stored) == signature(bare) == "KeyError: <n>"
    assert signature(None) == signature("") == signature("\n\n") == ""


def test_long_and_repetitive_lines_are_cut() -> None:
    for part in ("'", "a.", "1,", "/a", "\\'", "a@", "[::", "0x", "http://", "code ", "-", "\x00", "\ue000", "1e"):
        assert len(signature(part * 100_000)) <= SHOWN


@given(st.text())
def test_a_signature_of_any_text_is_one_short_line(text: str) -> None:
    found = signature(text)
    assert len(found) <= SHOWN
    assert "\n" not in found
    assert signature(text) == found
