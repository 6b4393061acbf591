"""The rights that a user of the server needs (ACL). They are checked at open, so that no script fails in the middle."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

import treadle.storage.redis
from tests.servers import valkey
from treadle import StorageDenied
from treadle.core.limit_model import Limit
from treadle.core.model import Claim, LeaseRenewal, NewJob, Outcome, Presence, State
from treadle.storage import connect
from treadle.storage.redis import RedisStorage
from treadle.storage.redis.errors import RIGHTS
from treadle.testing import HandClock

NO_VERBS = {"NUMSUB", "XX"}  # words after a command
LUA = Path(treadle.storage.redis.__file__).with_name("lua")
_turns = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[valkey.Valkey]:
    with valkey.Valkey() as server:
        yield server


def as_user(server: valkey.Valkey, *rights: str) -> str:
    """The URL of a new user with these rights."""
    name = f"user{next(_turns)}"
    server.do("ACL", "SETUSER", name, "on", ">pw", "resetchannels", *rights)
    return server.url.replace("redis://", f"redis://{name}:pw@")


def granted(prefix: str = "{treadle:*") -> tuple[str, ...]:
    return f"~{prefix}", f"&{prefix}", *RIGHTS.split()


@pytest.mark.parametrize("more", ["", "&shards=3"])
async def test_the_rights_that_are_named_are_enough(server: valkey.Valkey, more: str) -> None:
    """Each verb, with limits, keys and waits, as the user that the error and the guide describe."""
    storage = connect(f"{as_user(server, *granted())}?ns=all{len(more)}{more}")
    await storage.open()
    await storage.set_limits([Limit("api", slots=1), Limit("fast", rate=1, per=60.0)])
    await storage.enqueue(
        [
            NewJob(id="a", task="t", limits=(("api", 1),)),
            NewJob(id="b", task="t", limits=(("api", 1), ("fast", 1))),
            NewJob(id="c", task="t", key="k", lane="l"),
            NewJob(id="d", task="t", after=("a",)),
            NewJob(id="e", task="t", delay=60.0),
        ]
    )
    rows = list((await storage.claim(Claim(worker="w#1", limit=9))).records)
    assert [row.id for row in rows] == ["a", "c"]
    held = await storage.heartbeat(Presence(worker="w"), [LeaseRenewal(id="a", version=rows[0].version)], 30.0)
    assert held.lost == frozenset()
    ends = [Outcome(id=row.id, version=row.version, state=State.SUCCEEDED, attempt=1) for row in rows]
    assert [told.status for told in await storage.settle(ends)] == ["applied", "applied"]
    assert len((await storage.claim(Claim(worker="w#2", limit=9))).records) == 2
    await storage.prune(9)
    await storage.stats()
    assert [told.settings is not None for told in await storage.health()] == [True]  # type: ignore[attr-defined]
    await storage.close()


@pytest.mark.parametrize(
    ("lacking", "named"),
    [
        ("resetchannels", "PUBLISH"),
        ("-zadd", "ZADD"),
        ("-@pubsub", "PUBSUB"),
        ("-subscribe", "SUBSCRIBE"),
        ("-pexpire", "PEXPIRE"),
    ],
)
async def test_a_right_that_is_missing_is_named_at_open(server: valkey.Valkey, lacking: str, named: str) -> None:
    """Redis 7 gives a new user no channels: every call was carried out by half, and slots leaked."""
    storage = RedisStorage(as_user(server, *granted(), lacking), ns="lacking")
    with pytest.raises(StorageDenied, match=rf"{named}.*ACL SETUSER"):
        await storage.open()
    await storage.close()


async def test_keys_of_another_program_are_refused(server: valkey.Valkey) -> None:
    storage = RedisStorage(as_user(server, *granted("{treadle:shop*")), ns="other")
    with pytest.raises(StorageDenied, match="ACL"):
        await storage.open()
    await storage.close()


async def test_a_right_that_is_withdrawn_later_breaks_no_call_in_its_middle(server: valkey.Valkey) -> None:
    """The channels are withdrawn while jobs run: nothing more is published, and every call is carried out as a
    whole."""
    url = as_user(server, *granted())
    storage = RedisStorage(url, ns="withdrawn")
    await storage.open()
    await storage.set_limits([Limit("api", slots=1)])
    server.do("ACL", "SETUSER", url.partition("//")[2].partition(":")[0], "resetchannels")
    await storage.close()
    storage._pool = type(storage._pool)(storage._place)  # as a process that has been open for long
    await storage.enqueue([NewJob(id=f"j{n}", task="t", limits=(("api", 1),)) for n in range(3)])
    for turn in range(3):
        [row] = (await storage.claim(Claim(worker=f"w#{turn}", limit=9))).records
        end = Outcome(id=row.id, version=row.version, state=State.SUCCEEDED, attempt=1)
        assert [told.status for told in await storage.settle([end])] == ["applied"]
        assert [(use.key, use.used) for use in (await storage.stats()).limits if use.used] == []
    await storage._pool.close()


@pytest.mark.parametrize("hold", ["running", "ended"])
async def test_slots_that_leaked_once_are_freed(server: valkey.Valkey, hold: Literal["running", "ended"]) -> None:
    """An older version left a slot taken with nothing running: the limit was shut for good. Slots in use stay."""
    clock = HandClock()
    storage = RedisStorage(server.url, ns=f"leaked-{hold}", now=clock)
    await storage.open()
    await storage.set_limits([Limit("api", slots=2, hold=hold), Limit("other", slots=1)])
    ask = ("api", 1), ("other", 1)
    await storage.enqueue([NewJob(id="a", task="t", limits=ask[1:]), NewJob(id="b", task="t", limits=ask[:1])])
    assert len((await storage.claim(Claim(worker="w#1", limit=1))).records) == 1
    assert await storage.recount_slots() == []
    for name in ("live", "begun"):
        await storage.write("HINCRBY", name, "api", 2)
    assert (await storage.claim(Claim(worker="w#2", limit=9))).records == ()
    clock.advance(3_601)
    await storage.heartbeat(Presence(worker="w"), [LeaseRenewal(id="a", version=1)], 30.0)
    await storage.prune(1)
    assert {use.key: (use.used, use.blocked) for use in (await storage.stats()).limits} == {
        "api": (0, 0),
        "other": (1, 0),
    }
    assert [row.id for row in (await storage.claim(Claim(worker="w#3", limit=9))).records] == ["b"]
    await storage.write("HINCRBY", "live", "other", 1)
    assert ("other", 2, 1) in await storage.recount_slots()
    await storage.close()


def test_every_command_that_is_used_is_tried() -> None:
    """A script that uses a new command, and is refused it after a write, would leave half of a call."""
    sent = r"(?:call|call_many|pcall)\('([A-Z]+)'"
    used = {verb for path in LUA.glob("*.lua") if path.name != "rights.lua" for verb in _verbs(sent, path)}
    used |= {verb for path in LUA.parent.glob("*.py") for verb in _verbs(r'\.(?:read|write)\("([A-Z]+)"', path)}
    tries = LUA.joinpath("rights.lua").read_text("utf-8").partition("\nend\n\n")[2]
    tried = set(re.findall(r"'([A-Z]{2,})'", tries)) - NO_VERBS
    assert tried == used


def _verbs(pattern: str, path: Path) -> set[str]:
    return set(re.findall(pattern, path.read_text("utf-8")))
