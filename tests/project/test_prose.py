"""No sentence of the documentation, the package or the tests breaks the word lists of `tools/prose.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import prose


def broken(kind: str, text: str) -> list[str]:
    return prose.broken(prose.Sentence(kind, "page.md:7", text))


def test_no_sentence_breaks_a_rule() -> None:
    found = [finding for sentence in prose.sentences(prose.files(())) for finding in prose.broken(sentence)]
    assert not found, "\n".join(
        [
            f"{len(found)} sentences to rewrite (`python -m tools.prose`):",
            *found,
            "If a word is right there, add a comment `prose: ok` and the reason on that line or the one before.",
        ]
    )


@pytest.mark.parametrize(
    ("kind", "text", "words", "write"),
    [
        ("guides", "Who stores a job makes the claim.", "'Who'", "the actor as the subject"),
        ("errors", "what waits is lost", "'What'", "the actor as the subject"),
        ("comments", "The worker is told its row.", "'is told'", "the actor and its verb"),
        ("internals", "A storage is only asked for rows.", "'is only asked'", "the actor and its verb"),
        ("docstrings", "The lock goes to him.", "'him'", "'it' for a thing"),
        ("guides", "Nothing is lost, nor repeated.", "'nor'", "the plain word"),
        ("internals", "A video stands in line.", "'stands in'", "the field's term"),
        ("docstrings", "Without it jobs would be lost.", "'Without it'", "what it does"),
        ("comments", "Not repeated, for it may be late.", "', for it may'", "'because'"),
        ("names", "what is sent is stored", "'What'", "the actor as the subject"),
        ("names", "a heartbeat tends", "'tends'", "advance due rows"),
        ("names", "a waiter is told once", "'told'", "what a test observes"),
        ("names", "a worker that stops hands back its jobs", "'hands back'", "what a test observes"),
        ("names", "it closes the app", "'It '", "the actor as the subject"),
        ("names", "a run ends whatever its outcome", "'whatever'", "the actor as the subject"),
        ("names", "a worker knows its queue", "'knows'", "the verb for it"),
        ("names", "a list goes on", "'goes on'", "continues"),
        ("names", "a limit that nobody uses", "'nobody'", "the worker, the caller"),
        ("names", "a cursor that is none", "'is none'", "the plain word"),
    ],
)
def test_a_finding_names_the_place_the_words_and_a_better_wording(kind: str, text: str, words: str, write: str) -> None:
    [finding] = broken(kind, text)
    assert finding.startswith(f"page.md:7: found {words}; write {write}")
    assert finding.endswith(text)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("guides", "What does `settle` return?"),
        ("guides", "The command `in line beside` is code."),
        ("guides", "Shards hold beds and besides rows."),
        ("names", "a job is handed off to a waiting worker"),
        ("names", "surfaces of itself are unknown"),
    ],
)
def test_questions_code_and_longer_words_are_no_findings(kind: str, text: str) -> None:
    assert broken(kind, text) == []


def test_a_file_is_read_by_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    source = tmp_path / "module.py"
    source.write_text(
        '"""The docstring of a module."""\n'
        "# a comment over\n"
        "# two lines\n"
        'raise ValueError("an error with a `name`")\n'
        'log.warning("a line of the log")\n'
        '# prose: ok, a quotation\nquoted = "who stands in line"\n'
        "async def test_law02_a_lane_has_turns(): ...\n"
    )
    page = tmp_path / "docs" / "page.md"
    page.parent.mkdir()
    page.write_text("# A heading\n\nOne sentence. Another one.\n\n```python\ncode()\n```\n\n| a cell | more |\n")
    component = tmp_path / "part.tsx"
    component.write_text('/** A comment over\n * two lines. */\nconst url = "http://a"; // at the end of a line\n')
    assert [tuple(found) for found in prose.sentences([source, page, component])] == [
        ("docstrings", "module.py:1", "The docstring of a module."),
        ("comments", "module.py:2", "a comment over two lines"),
        ("errors", "module.py:4", "an error with a `name`"),
        ("logs", "module.py:5", "a line of the log"),
        ("names", "module.py:8", "a lane has turns"),
        ("guides", "docs/page.md:3", "One sentence."),
        ("guides", "docs/page.md:3", "Another one."),
        ("guides", "docs/page.md:9", "a cell"),
        ("guides", "docs/page.md:9", "more"),
        ("comments", "part.tsx:1", "A comment over two lines."),
        ("comments", "part.tsx:3", "at the end of a line"),
    ]
