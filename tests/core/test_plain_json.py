"""The bound on the depth of JSON that is read."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from treadle.core.errors import UNREADABLE
from treadle.core.plain_json import DEEPEST, read_json, refuse_deep

TEXTS = ("[{", '\n"]', '"]}', "\\", '\\"[[[', "a", "", 1, None, 2.5)


def tree(rng: random.Random, levels: int) -> Any:
    """A value of this depth, with shallower ones at each level."""
    value: Any = rng.choice(TEXTS)
    for level in range(levels):
        beside = (*TEXTS, [[]], {"[": {}}, [[{}]]) if level > 3 else TEXTS
        more = [rng.choice(beside) for _ in range(rng.randrange(3))]
        value = [*more, value] if rng.random() < 0.5 else {**dict(zip(("]", '"', "\\"), more, strict=False)), "": value}
    return value


@pytest.mark.parametrize("seed", range(50))
def test_the_depth_is_exact_for_strings_with_brackets(seed: int) -> None:
    rng = random.Random(seed)
    text = json.dumps([[tree(rng, DEEPEST - 2)], tree(rng, 3)], ensure_ascii=rng.random() < 0.5)
    refuse_deep(text)
    with pytest.raises(RecursionError, match="at most 500 levels"):
        refuse_deep(f"[{text}]")
    with pytest.raises(RecursionError):
        refuse_deep(f'{{"a":{text}}}'.encode())


@pytest.mark.parametrize("text", ["[" * 10**6, '{"a":' * 10**6, "[" * 20_000 + "]" * 20_000, '["' + "[" * 600])
def test_texts_that_are_too_deep_or_no_json_are_refused(text: str) -> None:
    with pytest.raises(UNREADABLE):
        read_json(text)
