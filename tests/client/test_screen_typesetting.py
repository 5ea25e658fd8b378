"""Lists, quotes and tables as text, and long texts in pages: what is pure of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from textual.content import Content

from nplt_client.fullscreen.markdown_view import parser
from nplt_client.fullscreen.plain_pages import cut
from nplt_client.fullscreen.typesetting import Row, lay_out, rows_of

WIDE = 200


def rows_in(markdown: str) -> list[Row]:
    return [
        row
        for token in parser().parse(markdown)
        if token.type == "folded"
        for row in rows_of(
            token.meta["tokens"],
            inline=lambda inline: Content(inline.content),
            code=lambda code, _: Content(code),
        )
    ]


def typeset(markdown: str, width: int = WIDE) -> list[str]:
    laid_out = lay_out(rows_in(markdown), width)
    return [line.rstrip() for line in laid_out.plain.split("\n")]


def test_a_list_a_quote_and_a_table_are_one_block_each_however_long() -> None:
    items = "".join(f"- item {number}\n" for number in range(500))
    rows = "".join(f"| {number} | x |\n" for number in range(500))
    text = f"{items}\n> said\n\n| a | b |\n|---|---|\n{rows}\nwords\n"
    top = [token.type for token in parser().parse(text)]
    assert top == ["folded"] * 3 + ["paragraph_open", "inline", "paragraph_close"]


def test_lists_are_nested_numbered_and_broken_under_their_own_beginning() -> None:
    assert typeset("- one two three four\n- b\n  1. c\n  1. d\n     - e\n-\n", width=16) == [
        "• one two three",
        "  four",
        "• b",
        "   1. c",
        "   2. d",
        "      ▪ e",
        "•",
    ]
    assert typeset("7. a\n\n8. b\n") == [" 7. a", "", " 8. b"]
    assert typeset("1. run\n   ```sh\n   ls\n\n   ls -l\n   ```\n2. look\n") == [
        " 1. run",
        "",
        "    ls",
        "",
        "    ls -l",
        " 2. look",
    ]


def test_a_quote_has_its_bar_on_every_line() -> None:
    assert typeset("> a\n>\n> > b c d e f\n", width=12) == [
        "▌ a",
        "▌",
        "▌ ▌ b c d e",
        "▌ ▌ f",
    ]


def test_a_table_gives_way_where_it_is_widest_and_becomes_lists_where_nothing_fits() -> None:
    table = "| a | words |\n|---|---|\n| 1 | some more words |\n| 2 |\n"
    assert typeset(table) == [
        "a │ words",
        "──┼────────────────",
        "1 │ some more words",
        "2 │",
    ]
    assert typeset(table, width=16)[2:4] == ["1 │ some more", "  │ words"]
    assert typeset(table, width=10) == [
        "a: 1",
        "words:",
        "some more",
        "words",
        "",
        "a: 2",
        "words:",
    ]


def test_what_is_nested_deep_is_not_left_out() -> None:
    deep = "".join(f"{'  ' * depth}- n{depth}\n" for depth in range(40))
    assert len(typeset(deep)) == 40


marked = st.lists(
    st.sampled_from(
        [
            "- ",
            "1. ",
            "> ",
            "  ",
            "word ",
            "漢字 ",
            "longer-word ",
            "| ",
            "\n",
            "|-|\n",
            "`a\tb` ",
            "```\n",
            "\t",
            "    ",
        ]
    ),
    max_size=40,
).map(lambda parts: "- " + "".join(parts))


@given(marked, st.integers(20, 60))
def test_the_screen_breaks_no_line_once_more(text: str, width: int) -> None:
    """Else there would be more lines than there is room for."""
    laid_out = lay_out(rows_in(text), width)
    assert all(Content(line).cell_length <= width for line in laid_out.plain.split("\n"))
    assert len(laid_out.wrap(width)) == laid_out.plain.count("\n") + 1


@given(st.text("ab\n", max_size=60), st.integers(1, 5), st.integers(1, 20))
def test_a_page_is_within_its_limits_and_nothing_is_lost(
    text: str, lines: int, characters: int
) -> None:
    page, rest = cut(text, lines=lines, characters=characters)
    assert page + rest == text
    assert len(page) <= characters
    assert page.count("\n") <= lines
    assert page or not text
