"""The runner of code blocks: it must fail for a block that fails."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docs.blocks import BadPage, blocks, pages
from tests.docs.run import Ran, run


@pytest.fixture
def page(tmp_path: Path) -> Callable[..., Ran]:
    def _page(text: str, timeout: float = 20.0) -> Ran:
        return run("page.md", textwrap.dedent(text), tmp_path, timeout)

    return _page


def test_finds_blocks_with_their_lines_indents_and_longer_fences() -> None:
    text = (
        "a\n```python title='x'\nx = 1\n```\n"
        "- b\n\n    ~~~console\n    $ treadle demo\n    ~~~\n"
        "````md\n```python\n```\n````\n"
    )
    found = [(block.language, block.code, block.line) for block in blocks(text)]
    assert found == [("python", "x = 1\n", 3), ("console", "$ treadle demo\n", 8), ("md", "```python\n```\n", 11)]


def test_blocks_share_names_and_one_event_loop_unless_fresh(page: Callable[..., Ran]) -> None:
    ran = page("""
        ```python
        import asyncio
        first = (await asyncio.sleep(0, "first"), asyncio.get_running_loop())
        ```
        ```python
        assert first == ("first", asyncio.get_running_loop()), first
        await asyncio.sleep(0)
        ```
        <!-- fresh -->
        ```python
        assert "first" not in globals()
        ```
    """)
    assert ran == Ran("", "", [])


def test_a_failing_block_is_named_by_page_and_line(page: Callable[..., Ran]) -> None:
    ran = page("""
        ```python
        fine = 1
        assert fine == 2
        ```
        ```python
        print("never reached")
        ```
    """)
    assert ran.error
    assert 'File "page.md", line 4' in ran.output
    assert "never reached" not in ran.output


def test_files_are_written_and_commands_see_them(page: Callable[..., Ran], tmp_path: Path) -> None:
    ran = page("""
        <!-- file: shop/mail.py -->
        ```python
        WORD = "posted"
        ```
        <!-- file: settings.toml -->
        ```toml
        a = 1
        ```
        ```console
        $ python -c "import shop.mail; \\
            print(shop.mail.WORD)"
        posted
        $ WORD=x python3 -c "import os; print(os.environ['WORD'] + os.environ.get('TREADLE_URL', '-'))"
        $ rm -rf everything
        $ python3 dev.py test
        ```
        ```python
        from shop.mail import WORD
        assert WORD == "posted"
        assert open("settings.toml").read() == "a = 1\\n"
        ```
    """)
    assert not ran.error, ran.output
    assert "\nposted\n" in ran.output
    assert "\nx-\n" in ran.output
    assert (tmp_path / "shop/mail.py").read_text() == 'WORD = "posted"\n'


def test_a_command_that_fails_fails_the_page(page: Callable[..., Ran]) -> None:
    ran = page("""
        ```bash
        $ python -c "raise SystemExit(3)"
        ```
    """)
    assert ran.error
    assert "page.md:3: exit code 3 from: python -c" in ran.output


def test_a_block_not_run_is_counted_and_must_compile(page: Callable[..., Ran]) -> None:
    ran = page("""
        <!-- no-run: needs a mail server -->

        ```python
        raise SystemExit(1)
        ```
    """)
    assert ran == Ran("", "", ["page.md:5: needs a mail server"])
    with pytest.raises(SyntaxError) as caught:
        page("<!-- no-run: because -->\n```python\nthis is no Python\n```\n")
    assert (caught.value.filename, caught.value.lineno) == ("page.md", 3)


WAITS = """
    <!-- file: waits.py -->
    ```python
    import pathlib, signal, sys
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # one that comes before the wait is not lost
    pathlib.Path("up").touch()
    signal.sigwait([signal.SIGTERM])
    sys.exit({code})
    ```
    <!-- background -->
    ```console
    $ python waits.py
    ```
    ```python
    import pathlib, time
    while not pathlib.Path("up").exists():
        time.sleep(0.01)
    ```
"""


def test_a_background_block_must_end_cleanly_at_sigterm(page: Callable[..., Ran], tmp_path: Path) -> None:
    ended = page(WAITS.format(code=0))
    assert not ended.error, ended.output
    (tmp_path / "up").unlink()
    ran = page(WAITS.format(code=5))
    assert ran.error
    assert "page.md:12: exit code 5 from: python waits.py" in ran.output


def test_a_page_that_hangs_is_ended(page: Callable[..., Ran]) -> None:
    ran = page("```python\nprint('here', flush=True)\nimport threading; threading.Event().wait()\n```\n", timeout=1.0)
    assert ran == Ran("page.md took longer than 1 s", "here\n", [])


@pytest.mark.parametrize(
    "text",
    [
        "```python\n1\n",
        "<!-- no-run -->\n```python\n```\n",
        "<!-- fresh: x -->\n```python\n```\n",
        "<!-- file: ../x.py -->\n```python\n```\n",
        "<!-- file: x.py -->\ntext between\n```python\n```\n",
        "<!-- background -->\n```python\n```\n",
    ],
)
def test_a_block_that_contradicts_itself_is_refused(text: str) -> None:
    with pytest.raises(BadPage):
        blocks(text)


def test_other_comments_are_left_alone() -> None:
    assert len(blocks("<!-- a remark -->\ntext\n<!-- remark: yes -->\n```python\n```\n")) == 1


def test_generated_pages_and_decisions_are_not_examples(tmp_path: Path) -> None:
    for name in (
        "README.md",
        "docs/a.md",
        "docs/reference/x.md",
        "docs/internals/b.md",
        "docs/internals/decisions/1.md",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = [path.relative_to(tmp_path).as_posix() for path in pages(tmp_path)]
    assert found == ["README.md", "docs/a.md", "docs/internals/b.md"]
    assert pages(tmp_path / "nowhere") == []
