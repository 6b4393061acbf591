"""The file of tokens: a typo in it grants nothing, a token may expire, and its rights are listed in words."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner

from tests.served import memory_url
from tests.server.test_api import Client, session
from treadle.cli.output import Stop
from treadle.cli.tokens import token as command
from treadle.core.clock import wall
from treadle.server import Settings, Token
from treadle.server.auth.token_file import BadTokens, as_toml, exposed, read
from treadle.server.auth.tokens import digest, end, in_short, rights

__all__ = ["session"]

GOOD = f'[[token]]\nname = "web"\ndigest = "{digest("s")}"\nscopes = ["read"]\n'


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('scope = ["read"]', "unknown field 'scope'; did you mean 'scopes'?"),
        ('queue = ["a"]', "unknown field 'queue'; did you mean 'queues'?"),
        ('Queues = ["a"]', "unknown field 'Queues'; did you mean 'queues'?"),
        ("expire = 2030-01-01", "unknown field 'expire'; did you mean 'expires'?"),
        ("queues = []", "queues = [] contains no queue"),
        ('queues = "a"', "queues: expected a list"),
        ("queues = [1]", "queues: expected a list"),
        ('queues = [" a"]', "expected a name"),
        ('queues = ["treadle"]', "is Treadle's own queue"),
        ('expires = "2030-01-01"', "expires: expected a day or a time"),
        ("expires = 5", "expires: expected a day or a time"),
        ('payloads = "false"', "payloads: expected true or false"),
        ("payload = false", "unknown field 'payload'; did you mean 'payloads'?"),
    ],
)
def test_an_unknown_word_or_value_is_an_error(line: str, said: str) -> None:
    with pytest.raises(BadTokens) as caught:
        read(GOOD + line + "\n")
    assert said in str(caught.value)
    assert "web" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD.replace("scopes = ", "# "), "`scopes` is missing"),
        (GOOD.replace("name = ", "# "), "token number 1: `name` is missing"),
        (GOOD.replace('["read"]', '["raed"]'), "unknown scope 'raed'; did you mean 'read'?"),
        (GOOD.replace('["read"]', '"read"'), "scopes: expected a list"),
        (GOOD.replace(digest("s"), digest("s").upper()), "64 characters 0-9 a-f"),
        (GOOD.replace(digest("s"), "\u00e9" * 64), "64 characters 0-9 a-f"),
        (GOOD.replace(digest("s"), "0" * 63), "64 characters 0-9 a-f"),
        (GOOD.replace('"web"', '"a/b"'), "name: expected 1-64"),
        (GOOD + GOOD.replace(digest("s"), digest("t")), "two tokens are named 'web'"),
        (GOOD + GOOD.replace('"web"', '"other"'), "'web' and 'other' have the same digest"),
        (GOOD.replace("[[token]]", "[[tokens]]"), "unknown field 'tokens'; did you mean 'token'?"),
        (GOOD.replace("[[token]]", "[token]"), "expected tables that begin with [[token]]"),
        (GOOD.replace("= [", "= "), ""),
    ],
)
def test_a_mistake_in_a_token_file_gives_no_right(text: str, said: str) -> None:
    with pytest.raises(BadTokens) as caught:
        read(text)
    assert said in str(caught.value)


def test_a_written_token_is_read_again() -> None:
    made = Token(name="web", digest=digest("s"), scopes=("read", "work"), queues=("a", 'b"c'), expires=1_900_000_000.0)
    assert read(as_toml(made) + as_toml(Token(name="other", digest=digest("t"), scopes=()))) == (
        made,
        Token(name="other", digest=digest("t"), scopes=()),
    )


@pytest.mark.parametrize("value", ["2030-01-31", "2030-01-31T00:00:00", "2030-01-31T01:00:00+01:00"])
def test_a_day_starts_at_midnight_and_times_without_a_zone_are_utc(value: str) -> None:
    [found] = read(f"{GOOD}expires = {value}\n")
    assert found.expires == 1_896_048_000.0
    assert not found.ended(1_896_047_999.9)
    assert found.ended(1_896_048_000.0)
    assert end(found, 0.0) == "2030-01-31 00:00 UTC"


async def test_a_token_expires_and_the_answer_names_the_time(session: aiohttp.ClientSession) -> None:
    tokens = (
        Token(name="old", digest=digest("old"), scopes=("read",), expires=1_577_836_800.0),
        Token(name="new", digest=digest("new"), scopes=("read",), expires=wall() + 3_600),
    )
    call = Client(memory_url(None, Settings(tokens=tokens)), session)
    status, problem = await call("GET", "/v1/jobs", token="old")
    assert (status, problem["error"]) == (401, "expired")
    assert "'old' expired on 2020-01-01 00:00 UTC" in problem["message"]
    assert (await call("GET", "/v1/jobs", token="new"))[0] == 200
    assert (await call("GET", "/v1/jobs", token="guess"))[1]["error"] == "unauthorized"


def run(*words: str) -> Any:
    return CliRunner().invoke(command, list(words), standalone_mode=False)


def test_the_rights_of_each_token_are_listed_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "tokens.toml")
    for words in (
        ("web", "--scope", "enqueue", "--scope", "read", "--queue", "mail"),
        ("all",),
        ("old", "--scope", "operate", "--expires", "2020-01-01"),
    ):
        assert run(*words, "--file", file).exit_code == 0
    found = run("--file", file).output
    assert "send jobs; list and show jobs" in found
    assert "every queue" in found
    assert "expired 2020-01-01" in found
    [web, _, old] = read(Path(file).read_text())
    assert (web.scopes, web.queues, old.expires) == (("enqueue", "read"), ("mail",), 1_577_836_800.0)
    assert in_short(web) == "web may enqueue, read in mail"
    assert rights(old) == "cancel, retry, signal and pause"


@pytest.mark.parametrize(
    ("mode", "said"), [(0o600, None), (0o644, "other users can read"), (0o660, "other users can write to")]
)
def test_a_file_that_others_can_read_or_write_is_named(tmp_path: Path, mode: int, said: str | None) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(GOOD)
    file.chmod(mode)
    found = exposed(file)
    assert found is None if said is None else said in (found or "")
    output = run("--file", str(file)).output
    assert ("chmod 600" in output) is (said is not None)


def test_a_token_without_payloads() -> None:
    [found] = read(GOOD + "payloads = false\n")
    assert not found.payloads
    assert read(as_toml(found)) == (found,)
    assert rights(found) == "list and show jobs; without payloads"
    [plain] = read(GOOD + "payloads = true\n")
    assert plain.payloads
    assert "payloads" not in as_toml(plain)
    with pytest.raises(BadTokens, match="contradicts the scope 'work'"):
        read(GOOD.replace('["read"]', '["read", "work"]') + "payloads = false\n")


def test_the_command_makes_a_token_without_payloads(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    made = CliRunner().invoke(command, ["support", "--no-payloads", "--file", str(file)])
    assert made.exit_code == 0, made.output
    [found] = read(file.read_text())
    assert (found.payloads, "work" in found.scopes) == (False, False)
    refused = CliRunner().invoke(command, ["w", "--scope", "work", "--no-payloads", "--file", str(file)])
    assert refused.exit_code != 0
    assert "contradicts the scope 'work'" in str(refused.exception)


@pytest.mark.parametrize("number", [errno.EBUSY, errno.EACCES, errno.EROFS])
def test_a_file_that_cannot_be_replaced_is_added_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A file that is mounted by itself into a container cannot be renamed over."""
    file = tmp_path / "tokens.toml"

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    assert CliRunner().invoke(command, ["first", "--file", str(file)]).exit_code == 0
    inode = file.stat().st_ino
    monkeypatch.setattr(os, "rename", refuse)
    made = CliRunner().invoke(command, ["second", "--queue", "mail", "--file", str(file)])
    assert made.exit_code == 0, made.output
    assert [(each.name, each.queues) for each in read(file.read_text())] == [("first", ()), ("second", ("mail",))]
    assert (file.stat().st_ino, list(tmp_path.iterdir())) == (inode, [file])
    with pytest.raises(Stop, match=os.strerror(number)):
        command.main(["only", "--file", str(tmp_path / "new.toml")], standalone_mode=False)
    assert list(tmp_path.iterdir()) == [file]
