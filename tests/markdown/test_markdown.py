"""Markdown as HTML: what it allows, what it escapes, what it highlights."""

from __future__ import annotations

import html
import re

from hypothesis import given
from hypothesis import strategies as st

from nplt_markdown import MARKDOWN_CHARACTERS_MAX, blocks, prose
from nplt_markdown.highlight import CODE_CHARACTERS_MAX, LANGUAGES, highlighted


def test_text_beyond_the_limit_is_not_parsed_as_markdown() -> None:
    giant = "*a* " * (MARKDOWN_CHARACTERS_MAX // 4 + 1)
    assert giant in prose(giant)
    assert "<em>" in prose("*a*")


def test_invisible_characters_are_made_visible_in_html() -> None:
    assert prose("a\u202eb\x00c\ud83d") == "<p>a⟨U+202E⟩b⟨U+0000⟩c⟨U+D83D⟩</p>\n"


def test_raw_html_is_escaped_and_pictures_become_links() -> None:
    assert prose("<b>") == "<p>&lt;b&gt;</p>\n"
    shown = prose("![a cat](https://e.example/cat.png)")
    assert "<img" not in shown
    assert 'href="https://e.example/cat.png" rel="noopener noreferrer">picture: a cat</a>' in shown
    assert "href" not in prose("[x](javascript:alert(1)) ![y](data:image/png;base64,AA)")


def test_items_of_a_task_list_begin_with_a_box() -> None:
    shown = prose("- [ ] buy\n- [x] cook\n- plain [x] text\n\n[ ] no list")
    assert shown.count('class="task"') == 2
    assert 'aria-label="open">☐</span> buy' in shown
    assert 'aria-label="done">☑</span> cook' in shown


def test_code_of_a_known_language_is_highlighted() -> None:
    shown = prose('```python title="x"\nif a < b:\n    return "<i>"\n```')
    assert 'class="language-python"' in shown
    assert '<span class="k">if</span>' in shown
    assert "&lt;i&gt;" in shown
    assert "<i>" not in shown


def test_code_without_a_known_language_or_beyond_the_limit_is_only_escaped() -> None:
    assert prose("```\na < b\n```") == "<pre><code>a &lt; b\n</code></pre>\n"
    assert "<span" not in prose("```nonsense\nif x\n```")
    assert "<span" not in highlighted("if x\n" * CODE_CHARACTERS_MAX, "python")
    assert 'class="language-&quot;&gt;&lt;i&gt;"' in prose('```"><i>\nx\n```')


def test_every_language_of_the_list_has_a_lexer() -> None:
    for language in LANGUAGES:
        sample = "# a <b> /* c */ 'd' 12\n+if x = 1; end\n"
        assert "<span" in highlighted(sample, language), language


@given(st.text(max_size=200), st.sampled_from(sorted(LANGUAGES)))
def test_highlighting_changes_no_character_of_the_code(code: str, language: str) -> None:
    shown = highlighted(code, language)
    assert html.unescape(re.sub("<[^>]*>", "", shown)) == code


TEXTS = st.lists(
    st.sampled_from(
        ["# a", "text", "", "", "- item", "  more", "1. one", "> quote", "```py", "```", "x = 1",
         "| a | b |", "|---|---|", "| 1 | 2 |", "---", "    code", "[x]: http://a.example", "\t",
         "<b>", "* * *", "\x00\x0b", "a\r"]
    ),
    max_size=30,
).map("\n".join)  # fmt: skip


@given(TEXTS)
def test_blocks_are_the_whole_text_in_parts(text: str) -> None:
    found = blocks(text)
    assert "".join(block.html for block in found) == prose(text)
    assert sum(block.lines for block in found) == text.count("\n") + 1


@given(TEXTS, TEXTS)
def test_all_blocks_but_the_last_stay_as_they_are_if_more_follows(text: str, more: str) -> None:
    whole = text.replace("]: ", "] ") + "\n"  # a definition changes the links before it
    before = blocks(whole)[:-1]
    assert blocks(whole + more.replace("]: ", "] "))[: len(before)] == before
