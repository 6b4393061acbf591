"""Laws of storing: calls of any size and texts of any kind are stored unchanged. They belong to no numbered law."""

from __future__ import annotations

from contextlib import suppress

import pytest

from treadle.core.errors import BadOption
from treadle.core.model import Claim
from treadle.storage.contract import Storage
from treadle_testkit.conformance.kit import (
    ask,
    beat,
    claim,
    claim_ids,
    claim_one,
    done,
    failed,
    ids,
    job,
    jobs,
    renewal,
    row,
    settle,
)
from treadle_testkit.shows import shows


async def test_more_five_thousand_jobs_in_one_call(storage: Storage) -> None:
    """One call takes any number of jobs, and they are claimed in order."""
    answered = await storage.enqueue([job(f"j{n:04}") for n in range(5_000)])
    assert ids(answered) == [f"j{n:04}" for n in range(5_000)]
    taken = await claim(storage, 5_000)
    assert ids(taken) == ids(answered)
    await settle(storage, *(done(record) for record in taken[:2_500]), *(failed(record) for record in taken[2_500:]))
    assert await claim_ids(storage) == []


@shows("each call of a storage accepts an empty list", area="Storages")
async def test_more_an_empty_call_of_every_verb(storage: Storage) -> None:
    """An empty call returns nothing and raises nothing."""
    assert await storage.enqueue([]) == []
    assert await storage.settle([]) == []
    assert await storage.get([]) == []
    assert await beat(storage) == set()
    assert await storage.prune(100) == 0
    await storage.set_limits([])
    await storage.enqueue(jobs("a"))
    assert (await storage.claim(Claim(worker="w#none", queues=(), limit=5))).records == ()
    assert await claim_ids(storage, 0) == []
    assert await storage.prune(0) == 0
    assert await storage.watch([], 0) == set()
    assert ids((await storage.claim(ask(5))).records) == ["a"]


async def test_more_every_field_of_a_job_is_stored(storage: Storage) -> None:
    """Every field of a job is returned as it was given."""
    sent = job(
        "every.Field:1@x-_",
        task="pkg.mod:fn",
        payload='{"a":[1,2]}',
        queue="q",
        priority=-7,
        delay=1.5,
        key="t:k",
        key_conflict="replace",
        key_window=9.5,
        key_until="started",
        after=("up",),
        required=1,
        failures_allowed=None,
        wait_timeout=77.0,
        limits=(("tenant:a", 2), ("api", 1)),
        lane="lane",
        stride=0.25,
        aging=2.5,
        keep=100.0,
        keep_failed=200.0,
        deadline=900.0,
        run_at=12.5,
        deadline_at=1e11,
        retry='{"attempts":3}',
        lease=12.5,
        labels=("x", "y"),
        headers=(("h", "1"), ("i", "2")),
        root="r",
        parent="p",
        function_done=True,
    )
    [answered] = await storage.enqueue([sent])
    assert answered.job == sent
    assert (await row(storage, sent.id)).job == sent


async def test_more_a_very_large_payload_is_stored(storage: Storage) -> None:
    """A payload and a result of five megabytes are stored."""
    large = '"' + "x" * 5_000_000 + '"'
    await storage.enqueue([job("a", payload=large)])
    a = await claim_one(storage)
    assert a.job.payload == large
    await settle(storage, done(a, result=large))
    assert (await row(storage, "a")).result == large


WORDS = "Gr\u00fc\u00dfe_\u4f60\u597d_\U0001f9f5_'\"\\%_?:$1{}"


@pytest.mark.parametrize("named", [WORDS, WORDS + " \u001f\ufeff\u2028 \ue000"])
async def test_more_any_text_is_returned_unchanged(storage: Storage, named: str) -> None:
    """Texts are returned unchanged: other scripts, emoji, quotes, line ends, separators (all but U+0000). A storage may
    refuse names with unprintable characters, as a server does."""
    text = WORDS + " \u001f\ufeff\u2028 \ue000\r\n\t"
    new = job(
        "a",
        payload=text,
        queue=named,
        task=named,
        lane=named,
        labels=(named,),
        key=named,
        headers=((named, named),),
        limits=((named, 1),),
    )
    try:
        await storage.enqueue([new])
    except BadOption:
        assert not named.isprintable()
        return
    [a] = await claim(storage, 1, named, tasks={named: (1, None)})
    assert (a.job.payload, a.job.headers, a.job.labels) == (text, ((named, named),), (named,))
    assert await beat(storage, renewal(a, note=text, checkpoints=((named, text),))) == set()
    await settle(storage, failed(a, error=text, reason="error", result=text, value=text))
    a = await row(storage, "a")
    assert (a.note, a.checkpoints, a.error, a.result, a.value) == (text, ((named, text),), text, text, text)


async def test_more_an_empty_text_differs_from_none(storage: Storage) -> None:
    """None and "" stay different wherever both are allowed. A storage may refuse empty names, as a server does."""
    await storage.enqueue([job("a", payload="", headers=(("h", ""),)), job("b")])
    a, b = await claim(storage, 2)
    assert (a.job.payload, a.job.labels, a.job.headers, a.job.lane, a.job.key) == ("", (), (("h", ""),), None, None)
    with suppress(BadOption):
        [c] = await storage.enqueue([job("c", lane="", key="", labels=("",), headers=(("", ""),))])
        assert (c.job.lane, c.job.key, c.job.labels, c.job.headers) == ("", "", ("",), (("", ""),))
    await settle(storage, done(a, result=""), done(b))
    assert ((await row(storage, "a")).result, (await row(storage, "b")).result) == ("", None)
