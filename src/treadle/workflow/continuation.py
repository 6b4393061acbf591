"""Converts the composition that a task returned to plain rows, in a form that a child process can send too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import msgspec
from msgspec import Struct

from treadle.core.errors import RESULT, BadOption, TooLarge, TreadleError
from treadle.core.job import Continuation, JobSpec, Source
from treadle.core.model import NewJob
from treadle.serialization.call_codec import MISSING
from treadle.workflow.checks import acyclic, usable
from treadle.workflow.flow import Conclude, Flow
from treadle.workflow.plan import PLAIN, EndingPlan


@final
class Followups(Struct, frozen=True, omit_defaults=True):
    """Jobs that are stored with the outcome of a run, or the end of its workflow.

    own        the encoded result of the run, if it has one
    concludes  `own` is the value of the whole workflow, and no job follows
    """

    jobs: tuple[NewJob, ...] = ()
    plan: EndingPlan = PLAIN
    own: str | None = None
    concludes: bool = False


encode_followups: Callable[[Followups], bytes] = msgspec.json.Encoder().encode
decode_followups = msgspec.json.Decoder(Followups).decode


def followups_of(
    returned: Continuation[Any, Any], encode: Callable[[object], str], most: int, source: Source | None = None
) -> Followups:
    """The rows for a task's return value. `encode` encodes the run's own result. Raises BadOption for jobs that cannot
    be combined or belong to another app, BadArgument for one that lacks an argument, BadResult and TooLarge. Each of
    them fails the job at once, because the function has returned."""
    try:
        return _followups_of(returned, encode, most, source)
    except TreadleError as error:
        error.fails_as = RESULT
        raise


def _followups_of(
    returned: Continuation[Any, Any], encode: Callable[[object], str], most: int, source: Source | None
) -> Followups:
    if isinstance(returned, Conclude):
        return Followups(own=_sized(encode(returned.result), most), concludes=True)
    if isinstance(returned, JobSpec):
        usable([returned], "return", source)
        jobs = [*returned.others, returned.new]
        acyclic(jobs)
        return Followups(tuple(jobs))
    if not isinstance(returned, Flow):
        raise BadOption("return", f"expected a flow, a spec or a value, found {returned!r}")
    usable(returned.specs, "return", source)
    own = None if returned.own is MISSING else _sized(encode(returned.own), most)
    return Followups(tuple(returned.rows()), returned.plan, own)


def _sized(text: str, most: int) -> str:
    if len(text) * 4 > most and (size := len(text.encode())) > most:
        raise TooLarge.of_result("the result", size, most)
    return text
