"""The limit that holds for a queue, in every look of the server: its own, otherwise `queue`, on every storage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.kit import Spy
from tests.served import host
from tests.server.places import EVERY, a_place
from tests.server.test_api import Client, session
from tests.server.test_crossing import token
from treadle import App
from treadle.core.limit_model import Limit, LimitUse, Pause
from treadle.core.model import Claim, NewJob
from treadle.core.query_model import Glance, QueueGlance
from treadle.core.queue_rules import QueueRules
from treadle.server import Settings
from treadle.server.overview import Look, compose
from treadle.server.overview.filling import exact_filling
from treadle.server.scale import figures
from treadle.storage.contract import Storage
from treadle.storage.memory import MemoryStorage
from treadle.storage.redis import ShardedRedis
from treadle_testkit.shows import shows

__all__ = ["session"]

BOUNDED = tuple(place for place in EVERY if place != "shards")  # shards have no limits of whole queues
TOKENS = (token("all", "read", "operate"), token("bound", "read", "operate", queues=("b",)))


def test_the_limit_of_all_queues_holds_where_a_queue_has_none_of_its_own() -> None:
    shut = LimitUse(key="queue", rule=Limit("queue", slots=0), pauses=(Pause("queue"),))
    own = LimitUse(key="queue:own", rule=Limit("queue:own", rate=5))
    rules = QueueRules((shut, own, LimitUse(key="queues", rule=Limit("queues", slots=0))))
    assert (rules.of("own"), rules.of("b"), rules.named, rules.paused) == (own, shut, {"own"}, set())
    assert (rules.pause_of("own"), rules.pause_of("b")) == (None, shut)
    assert (QueueRules(()).of("b"), QueueRules((own,)).pause_of("b")) == (None, None)


async def furnish(storage: Storage) -> None:
    await storage.enqueue([NewJob(id=f"{queue}{n}", task="t", queue=queue) for queue in ("a", "b") for n in range(5)])
    if not isinstance(storage, ShardedRedis):
        await storage.set_limits([Limit("queue:a", rate=50)])


@pytest.mark.parametrize("place", EVERY)
@shows("a pause of the limit `queue` is seen at each queue without a limit of its own, in every look")
async def test_a_pause_of_all_queues_is_in_every_look(
    place: str, tmp_path: Path, session: aiohttp.ClientSession
) -> None:
    with a_place(place, tmp_path) as storage:
        app = App(storage=storage)
        call = Client(host().add(app, Settings(tokens=TOKENS)), session)
        host().run(furnish(storage))

        async def read(path: str, name: str = "all") -> Any:
            status, found = await call("GET", path, token=name)
            assert status == 200, found
            return found

        assert (await call("POST", "/v1/limits/queue/pause", token="all"))[0] == 200
        for name in ("all", "bound"):
            overview = await read("/v1/overview", name)
            assert {each["name"]: each["paused"] for each in overview["queues"]}["b"]
            assert next(each["paused_by"] for each in overview["queues"] if each["name"] == "b") == "queue"
            notice = next(each for each in overview["notices"] if each["href"] == "queues/b")
            assert notice["text"] == "Queue 'b' is paused with 5 queued jobs."
            assert "the limit 'queue'" in notice["advice"]
            assert [each["paused"] for each in (await read("/v1/queues", name))["queues"]][-1:] == [True]
            assert (await read("/v1/scale?queue=b", name))["load"] == 0
        has_own = place != "shards"
        assert [each["paused"] for each in (await read("/v1/queues"))["queues"]] == [not has_own, True]
        scale = await read("/v1/scale")
        assert (scale["load"], scale["blocked"]) == ((5, 5) if has_own else (0, 10))
        _, text = await call("GET", "/metrics", token="all")
        assert 'treadle_queue_paused{queue="b"} 1' in text
        assert f'treadle_queue_paused{{queue="a"}} {0 if has_own else 1}' in text
        found = [each for each in (await read("/v1/doctor"))["checks"] if each["name"] == "paused"]
        assert [(each["text"], each["advice"]) for each in found[-1:]] == [
            ("queue 'b' is paused with 5 queued jobs, because the limit 'queue' is", "`treadle limits resume queue`")
        ]
        _, answer = await call("POST", "/v1/queues/b/resume", token="all")
        assert "the limit 'queue'" in answer["warning"]
        host().run(app.close())


@pytest.mark.parametrize("place", BOUNDED)
@shows("an autoscaler wants no more workers for a queue than its slots and its rate let start")
async def test_the_load_is_bounded_by_the_limit_of_the_queue(place: str, tmp_path: Path) -> None:
    with a_place(place, tmp_path) as storage:
        await storage.open()
        try:
            await storage.enqueue([NewJob(id=f"j{n}", task="t", queue="mail") for n in range(9)])
            claim = Claim(worker="w#1", queues=(("mail", 1),), tasks={"t": (None, None)}, limit=2)

            async def load(rule: Limit, *queues: str) -> tuple[int, int, int]:
                await storage.set_limits([rule])
                found = figures(await storage.glance(), queues, {"mail": (4, False)})
                return found.load, found.due_soon, found.blocked

            assert await load(Limit("queue", max_waiting=100), "mail") == (13, 4, 0)
            assert await load(Limit("queue", slots=3), "mail") == (3, 0, 6)
            assert len((await storage.claim(claim)).records) == 2
            assert await load(Limit("queue", slots=3), "mail") == (3, 0, 6)
            assert await load(Limit("queue", slots=11)) == (11, 2, 0)
            assert await load(Limit("queue:mail", slots=1)) == (2, 0, 7)  # jobs that run keep their workers
            assert await load(Limit("queue:mail", rate=2, per=3_600.0)) == (4, 0, 5)
            assert len((await storage.claim(Claim(**{**asked(claim), "worker": "w#2"}))).records) == 2
            assert await load(Limit("queue:mail", rate=2, per=3_600.0)) == (4, 0, 5)  # used up for an hour
        finally:
            await storage.close()


def asked(claim: Claim) -> dict[str, Any]:
    return {name: getattr(claim, name) for name in claim.__struct_fields__}


def test_a_rate_lets_as_many_jobs_start_as_it_admits_in_a_minute() -> None:
    queues = (QueueGlance(name="mail", queued=9_000, queued_capped=True, running=1),)

    def load(rule: Limit, **use: Any) -> tuple[int, bool]:
        limits = (LimitUse(key="queue:mail", rule=rule, **use),)
        found = figures(Glance(at=1_000.0, queues=queues, limits=limits), ("mail",), {})
        return found.load, found.capped

    name = "queue:mail"
    assert load(Limit(name, rate=5)) == (1 + 5 + 300, False)
    assert load(Limit(name, rate=5, per=60.0), starts=5, next_start=1_010.0) == (1 + 5, False)
    assert load(Limit(name, rate=50, per=600.0), starts=20) == (1 + 50, False)
    assert load(Limit(name, rate=50, per=600.0), starts=50, next_start=1_060.0) == (1, False)
    assert load(Limit(name, rate=60, per=600.0, how="bucket", burst=10), starts=8) == (1 + 2 + 6, False)
    assert load(Limit(name, rate=5, slots=3)) == (3, False)
    assert load(Limit(name, rate=500)) == (9_001, True)


@pytest.mark.parametrize("place", BOUNDED)
@shows("a queue with a bound beyond 10,000 is shown as full when it is full")
async def test_the_filling_of_a_queue_is_exact_beyond_the_bound_of_a_glance(place: str, tmp_path: Path) -> None:
    with a_place(place, tmp_path) as storage:
        await storage.open()
        try:
            jobs = [NewJob(id=f"j{n}", task="t", queue="mail", delay=60.0 * (n > 3)) for n in range(7)]
            await storage.enqueue([*jobs, NewJob(id="other", task="t", queue="other")])
            most = 2  # what a glance counts; 10,000 otherwise

            async def shown(bound: int | None) -> tuple[int | None, bool, bool, list[str]]:
                await storage.set_limits([Limit("queue:mail", max_waiting=bound)])
                glance = await storage.glance(most)
                overview = compose(Look(glance=glance, exact=await exact_filling(storage, glance)))
                queue = next(each for each in overview.queues if each.name == "mail")
                return (
                    queue.filled,
                    queue.filled_capped,
                    queue.full,
                    [each.text for each in overview.notices if "full" in each.text],
                )

            full = "Queue 'mail' is full with 7 waiting jobs and refuses new jobs."
            assert await shown(7) == (7, False, True, [full])
            assert await shown(8) == (7, False, False, [])
            assert await shown(None) == (None, False, False, [])
        finally:
            await storage.close()


async def test_one_look_suffices_unless_a_bound_is_beyond_what_it_counts() -> None:
    storage = Spy(MemoryStorage())
    await storage.enqueue([NewJob(id=f"j{n}", task="t", queue="mail") for n in range(7)])
    for rule in (Limit("queue:other", max_waiting=50), Limit("queue:mail", max_waiting=2)):
        await storage.set_limits([rule])
        assert await exact_filling(storage, await storage.glance(2)) == {}
    assert storage.calls["stats"] == 0
    await storage.set_limits([Limit("queue:mail", max_waiting=3)])
    assert await exact_filling(storage, await storage.glance(2)) == {"mail": 7}
    assert await exact_filling(storage, await storage.glance(50)) == {}
