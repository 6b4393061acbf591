"""The colours of the screen, dark and light, and its layout as style sheets.

A state is always a word or a sign, too: with NO_COLOR the screen is grey.
"""

from __future__ import annotations

from typing import Final

from textual.theme import Theme

WIDE, HIGH = 100, 24  # a screen with so many cells and lines shows all panels at the same time


def is_small(width: int, height: int) -> bool:
    """Whether a screen has room for one panel only."""
    return width < WIDE or height < HIGH


DARK: Final = Theme(
    name="treadle-dark",
    primary="#5b8def",
    secondary="#7aa2f7",
    accent="#6cb6ff",
    success="#57ab5a",
    warning="#d4a72c",
    error="#f47067",
    foreground="#d7dde6",
    background="#11151b",
    surface="#161b22",
    panel="#1c232d",
    boost="#26303d",
    dark=True,
    variables={"text-muted": "#8793a3", "cursor": "#243044"},
)
LIGHT: Final = Theme(
    name="treadle-light",
    primary="#2458c5",
    secondary="#2458c5",
    accent="#0b62b8",
    success="#1a7f37",
    warning="#8a6100",
    error="#c4211c",
    foreground="#1d2530",
    background="#fbfcfd",
    surface="#f3f5f8",
    panel="#e9edf2",
    boost="#dde5ef",
    dark=False,
    variables={"text-muted": "#5a6675", "cursor": "#d5e3f7"},
)

CSS: Final = """
Screen { background: $background; color: $foreground; }
#link, #keys, #said, #tabs { height: 1; text-wrap: nowrap; text-overflow: ellipsis; padding: 0 1; }
#link { background: $panel; }
#keys { background: $panel; color: $text-muted; }
#said { display: none; background: $boost; }
#alert { display: none; height: auto; max-height: 3; padding: 0 1; background: $error 25%; color: $foreground; }
#tiles { height: auto; padding: 1 2 0 2; text-wrap: nowrap; }
#notices { display: none; height: auto; padding: 1 2 0 2; text-wrap: nowrap; text-overflow: ellipsis; }
#tabs { display: none; }
#filter { display: none; height: 1; border: none; padding: 0 1; background: $boost; }
#panels { height: 1fr; padding: 1 1 0 1; }
#lower { height: 1fr; }
#failures { width: 3fr; }
#side { width: 2fr; }
Listing {
    height: 1fr;
    border: round $foreground 25%;
    border-title-color: $text-muted;
    border-subtitle-color: $text-muted;
    padding: 0 1;
    text-wrap: nowrap;
}
Listing:focus { border: round $accent; border-title-color: $text-accent; border-title-style: bold; }

.-small #tiles { padding: 0 1; max-height: 2; text-wrap: wrap; }
.-small #notices { padding: 0 1; }
.-small #tabs { display: block; }
.-small #panels { padding: 0; }
.-small Listing, .-small Listing:focus { border: none; padding: 0; }

#states { height: 1; padding: 0 2; margin: 1 0 0 0; text-wrap: nowrap; }
#jobs { margin: 0 1; }
.-small #states { padding: 0 1; margin: 0; }
.-small #jobs { margin: 0; }
#job { height: 1fr; padding: 1 2; }
#job:focus { background: $background; }
.-small #job { padding: 0 1; }

Ask, EnterBound, Help { align: center middle; background: $background 60%; }
#dialog { width: 64; max-width: 96%; height: auto; max-height: 90%; padding: 1 2; background: $panel;
    border: round $accent; }
#dialog VerticalScroll { height: auto; max-height: 8; margin: 1 0; }
#most { height: 1; border: none; padding: 0 1; margin: 1 0; background: $boost; }
#wrong { height: auto; }
#answers { height: 1; align-horizontal: right; }
#answers Button { margin: 0 0 0 2; min-width: 10; background: $boost; color: $foreground; }
#answers Button:focus { background: $accent; color: $background; text-style: bold; }
Ask.-small #dialog, EnterBound.-small #dialog { padding: 0 1; }
EnterBound.-small #most { margin: 0; }
Ask.-small #dialog VerticalScroll { max-height: 5; margin: 0; }
#help { width: 62; max-width: 96%; height: auto; max-height: 94%; padding: 1 2; background: $panel;
    border: round $accent; }
Help.-small #help { padding: 0 1; }
"""
