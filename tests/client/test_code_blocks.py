"""`nplt ask -x`: the code of an answer, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from tests.client.nplt_process import run_nplt

from nplt_client.render.text import code_blocks

PARTS = [
    "```",
    "````",
    "~~~",
    "~~~~",
    "```python",
    "~~~ sh x",
    "``` a`b",
    "print(1)",
    "",
    "  x",
    "a",
]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Here:\n```python\nprint(1)\n```\ndone", "print(1)\n"),
        ("~~~\na\n~~~", "a\n"),
        ("````md\n```sh\nls\n```\n````", "```sh\nls\n```\n"),
        ("```\nnever closed\n\n", "never closed\n\n"),
        ("1. so:\n\n   ```sh\n   if x\n     y\n   ```\n", "if x\n  y\n"),
        ("> ```\n> quoted\n> ```\nafter", "quoted\n"),
        ("```\r\na\r\nb\r\n```\r\n", "a\nb\n"),
        ("```\n```", ""),
        ("~~~\ny\n```\n~~~\nc `z`", "y\n```\n"),
    ],
)
def test_a_code_block_is_the_text_between_its_fences(text: str, code: str) -> None:
    assert [found for _, found in code_blocks(text)] == [code]


@pytest.mark.parametrize("text", ["", "no code", "`inline`", "```x``` in a line", "``\nx\n``"])
def test_prose_has_no_code_blocks(text: str) -> None:
    assert list(code_blocks(text)) == []


@given(st.lists(st.sampled_from(PARTS), max_size=12))
def test_the_markdown_parser_finds_the_same_code_blocks(lines: list[str]) -> None:
    text = "".join(f"{line}\n" for line in lines)
    seen = [
        ((token.info.split() or [""])[0].lower(), token.content)
        for token in MarkdownIt("commonmark").parse(text)
        if token.type == "fence"
    ]
    assert list(code_blocks(text)) == seen


def test_code_blocks_in_the_first_language_are_joined_and_the_others_reported(
    server: str, tmp_path: Path
) -> None:
    answer = '```py title="x"\na\n```\n```sh\nrun\n```\n```PY\nb\n```\n```\nlog\n```'
    done = run_nplt("ask", "-x", home=tmp_path, server=server, stdin=answer)
    assert done.stdout == "a\n\nb\n"
    assert "languages than the first: sh, plain" in done.stderr


def test_ask_with_code_prints_only_code_blocks_or_fails(server: str, tmp_path: Path) -> None:
    answer = "Here:\n```python\nprint(1)\n```\nRun it:\n```sh\npython x.py\n```\n"
    done = run_nplt("ask", "-x", home=tmp_path, server=server, stdin=answer)
    assert (done.stdout, done.returncode) == ("print(1)\n", 0)
    assert "left out" in done.stderr
    prose = run_nplt("ask", "-x", "rm is a command", home=tmp_path, server=server)
    assert (prose.stdout, prose.returncode) == ("", 6), "no prose for a shell to run"
    assert "no block of code" in prose.stderr
