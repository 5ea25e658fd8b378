"""What the full screen computes without a screen: lists and tables as text, pages, search."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st
from textual.content import Content

from nplt_client.tui.markdown import TextRow, cut, lay_out, parser, rows_of
from nplt_client.tui.screens import age, ranked

WIDE = 200


def rows_in(markdown: str) -> list[TextRow]:
    return [
        row
        for token in parser().parse(markdown)
        if token.type.startswith("folded")
        for row in rows_of(
            token.meta["tokens"],
            inline=lambda inline: Content(
                "".join(
                    "\n" if child.type == "hardbreak" else child.content
                    for child in inline.children or ()
                )
            ),
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


def test_lists_are_nested_numbered_and_wrapped_with_indentation() -> None:
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


def test_a_table_shrinks_its_widest_columns_and_becomes_lists_if_nothing_fits() -> None:
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


def test_table_columns_keep_their_alignment() -> None:
    assert typeset("| name | size | x |\n|---|--:|:-:|\n| a | 1 | y |\n| bb | 1000 | yyy |\n") == [
        "name │ size │  x",
        "─────┼──────┼────",
        "a    │    1 │  y",
        "bb   │ 1000 │ yyy",
    ]


def test_items_of_a_task_list_have_boxes_instead_of_bullets() -> None:
    assert typeset("- [ ] buy milk today\n- [x] done\n- [link](x)\n", width=16) == [
        "☐ buy milk today",
        "☑ done",
        "• link (x)",
    ]


def test_line_breaks_stay_as_they_were_written() -> None:
    assert typeset("> one\n> two\n") == ["▌ one", "▌ two"]


def test_link_targets_stand_next_to_their_text() -> None:
    text = "- [a](https://x.org/y) https://z.org <me@x.org> ![chart](c.png)\n"
    assert typeset(text) == [
        "• a (https://x.org/y) https://z.org me@x.org chart (c.png)",
    ]


def test_a_long_line_of_code_is_broken_with_a_mark() -> None:
    assert typeset("```\nab cd ef gh ij\nshort\n```\n", width=8) == [
        "ab cd ef",
        "↪  gh ij",
        "short",
    ]


def test_deeply_nested_markdown_is_not_left_out() -> None:
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
def test_laid_out_lines_need_no_further_wrapping(text: str, width: int) -> None:
    """Else there would be more lines than there is room for."""
    laid_out = lay_out(rows_in(text), width)
    assert all(Content(line).cell_length <= width for line in laid_out.plain.split("\n"))
    assert len(laid_out.wrap(width)) == laid_out.plain.count("\n") + 1


@given(st.text("ab\n", max_size=60), st.integers(1, 5), st.integers(1, 20))
def test_cut_keeps_a_page_within_its_limits_and_loses_nothing(
    text: str, lines: int, characters: int
) -> None:
    page, rest = cut(text, lines=lines, characters=characters)
    assert page + rest == text
    assert len(page) <= characters
    assert page.count("\n") <= lines
    assert page or not text


def test_picker_ranks_whole_words_before_similar_ones() -> None:
    texts = {"1": "counting words", "2": "a word of caution", "3": "the count of words", "4": "x"}
    assert ranked("counting words", texts)[0] == "1"
    assert set(ranked("words count", texts)) == {"1", "3"}
    assert "1" in ranked("cuonting", texts)
    assert ranked("cuonting wrods", texts) == ["1"]
    assert ranked("", texts) == list(texts)
    assert ranked("京都", {"1": "trip to 京都"}) == ["1"]


def test_picker_matches_letters_in_order_as_fzf_does() -> None:
    names = {"1": "release notes 2.4", "2": "trip to Kyoto", "3": "real estate\nrelease notes"}
    assert ranked("rln", names) == ["1"]
    assert ranked("rn24", names) == ["1"]
    assert ranked("ttk", names) == ["2"]
    assert ranked("release", names) == ["1", "3"], "in the name before elsewhere"
    beginnings = {"1": "xnxoxtxexs", "2": "n o t e s"}
    assert ranked("notes", beginnings) == ["2", "1"]


@given(st.text("abc ", min_size=1, max_size=12), st.data())
def test_picker_finds_a_name_by_any_of_its_letters_in_order(name: str, data: st.DataObject) -> None:
    kept = data.draw(st.lists(st.booleans(), min_size=len(name), max_size=len(name)))
    typed = "".join(letter for letter, is_kept in zip(name, kept, strict=True) if is_kept)
    assert ranked(typed.replace(" ", ""), {"1": name}) == ["1"]


@given(st.text(max_size=30), st.dictionaries(st.text(max_size=3), st.text(max_size=40), max_size=6))
def test_picker_returns_only_existing_keys_for_any_text(typed: str, texts: dict[str, str]) -> None:
    found = ranked(typed, texts)
    assert len(found) == len(set(found))
    assert set(found) <= set(texts)


def test_ages_are_formatted_in_one_unit() -> None:
    now = datetime(2026, 1, 2, tzinfo=UTC)
    ages = [
        age((now - timedelta(seconds=gone)).isoformat(), now) for gone in (5, 200, 8000, 200000)
    ]
    assert ages == ["now", "3 min", "2 h", "2 d"]
    assert age("no time", now) == age("2026-01-01", now) == ""
