"""Messages and errors on the wire: which fields a body may leave out, and the word of an error without one of its
own."""

from __future__ import annotations

from treadle import AnswerTooLarge, StorageUnavailable
from treadle.core.model import Presence
from treadle.server import long_lists
from treadle.storage import messages


async def test_a_list_that_may_be_left_out_of_a_body_is_empty() -> None:
    found = await long_lists.decoded(b'{"worker":{"worker":"w"}}', messages.Beat)
    assert found == messages.Beat(Presence(worker="w"))


def test_an_error_without_a_code_has_that_of_its_base() -> None:
    status, problem = messages.problem_of(AnswerTooLarge("there", 1))
    assert status == 503
    assert type(messages.error_of(problem)) is StorageUnavailable
