"""The web page of a conversation: readable, whole, and unable to do anything.

Read here with Python's own HTML parser, and by a real browser where Debian's
chromium is installed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.nplt_process import SECONDS_MAX, private_environment, run_nplt

from nplt_client import sync
from nplt_client.render.html_page import (
    BARS_MAX,
    TurnTokens,
    chart,
    page,
    short,
)
from nplt_protocol.json_text import JsonObject, JsonValue

TAGS = {
    "html", "head", "meta", "title", "style", "body", "div", "header", "main", "section", "article",
    "h1", "h2", "h3", "h4", "h5", "h6", "b", "span", "time", "details", "summary", "pre", "code",
    "p", "ul", "ol", "li", "blockquote", "table", "thead", "tbody", "tr", "th", "td", "a", "em",
    "strong", "s", "hr", "br", "svg", "line", "text", "rect", "footer",
}  # fmt: skip
ATTRIBUTES = {
    "lang", "charset", "http-equiv", "content", "name", "class", "id", "dir", "datetime", "href",
    "rel", "start", "viewbox", "role", "aria-label", "x", "y", "x1", "x2", "y1", "y2", "width",
    "height",
}  # fmt: skip
HOSTILE = [
    "<script>document.title='owned'</script>", "</style>", "</title>", "<!--", "]]>", "&lt;",
    "&#60;", "<img src=x onerror=alert(1)>", '" onmouseover="alert(1)', "[x](javascript:alert(1))",
    "`", "```\n", "![x](http://evil.example/p.png)", "[x](data:text/html;base64,AAAA)", "\n",
    "<http://a.example>", "[a]: javascript:x\n", "[a]", "| a | b |\n|--:|:-:|\n| 1 | 2 |\n",
    "> ", "- ", "# ", "\x00", "\x1b[2J", "\u202e", "\u2066", "日本", "text", " ",
    "<svg/onload=x>", "</pre>", "</details>", "<a href=x>",
]  # fmt: skip


class Reading(HTMLParser):
    """What a browser would make of it: elements, attributes, text."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] != "style":
            self.text += data

    def check_harmless(self) -> None:
        assert set(self.tags) <= TAGS
        for name, value in self.attributes:
            assert name in ATTRIBUTES, (name, value)
            if name == "href":
                assert re.match(r"https?://|mailto:|#turn-\d+$", value, re.I), value
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", self.text)


def message(seq: int, role: str, content: str, **more: JsonValue) -> JsonObject:
    return {
        "seq": seq,
        "role": role,
        "content": content,
        "timestamp": "2026-01-02T03:04:05.678+00:00",
        "tool_calls": [],
        "turn_id": f"turn of {seq}" if role == "user" else f"turn of {seq - 1}",
        **more,
    }


def whole(*messages: JsonObject, name: str = "a name") -> str:
    return "".join(page(name, "a" * 32, messages))


hostile_texts = st.lists(st.sampled_from(HOSTILE), max_size=8).map("".join)


@given(hostile_texts, hostile_texts, hostile_texts)
def test_no_text_of_a_conversation_becomes_html_markup(name: str, sample: str, more: str) -> None:
    call: JsonObject = {
        "tool_name": name,
        "status": more,
        "arguments": {sample: more},
        "result": sample,
    }
    made = whole(
        message(1, "user", sample),
        message(2, "assistant", more + sample, model=name, state=sample, tool_calls=[call]),
        message(3, sample, more, timestamp=sample),
        name=name,
    )
    made.encode()
    Reading(made).check_harmless()


def test_the_html_page_shows_messages_and_tool_calls() -> None:
    call: JsonObject = {
        "tool_name": "now",
        "status": "success",
        "duration": 1.234,
        "arguments": {"zone": "<UTC>"},
        "result": "noon & later",
    }
    made = whole(
        message(1, "user", "**as typed**\n<b>"),
        message(2, "assistant", "so **bold** `x<y`", tool_calls=[call], model="offline/echo"),
        message(3, "system", "it broke", state="failed"),
    )
    read = Reading(made)
    for sample in ("**as typed**\n<b>", "x<y", '"<UTC>"', "noon & later", "1.23 s", "it broke"):
        assert sample in read.text
    assert "<strong>bold</strong>" in made
    assert "2026-01-02 03:04" in read.text
    assert "3 messages in 2 turns" in read.text


def test_the_html_page_loads_nothing_remote_and_runs_no_script() -> None:
    made = whole(message(1, "assistant", "![a](https://e.example/a.png) <https://e.example>"))
    assert "default-src 'none'" in made
    assert not re.search(r"\b(src|srcset|style|on\w+)=|url\(|@import", made)


def test_the_token_chart_has_a_bar_per_turn_and_groups_thousands() -> None:
    few = [TurnTokens(number=number, sent=number, received=1) for number in range(1, 4)]
    drawn = chart(few)
    assert drawn.count("<title>") == 3
    assert "turn 2: 2 in, 1 out" in drawn
    many = [TurnTokens(number=number, sent=10, received=1) for number in range(1, 5_001)]
    drawn = chart(many)
    assert drawn.count("<title>") <= BARS_MAX
    counted = [int(n.replace(",", "")) for n in re.findall(r": ([\d,]+) in", drawn)]
    assert sum(counted) == 50_000
    assert "turns 1–42" in drawn
    counted_in = {"usage": {"input_tokens": 10, "output_tokens": 1}}
    long = whole(*(message(2 * n, "assistant", "x", **counted_in) for n in range(1, 300)))  # type: ignore[arg-type]
    assert "Tokens per 3 turns" in Reading(long).text
    assert chart([TurnTokens(number=1, sent=0, received=0)]) == ""
    assert (short(7), short(1234), short(2_500_000)) == ("7", "1.23k", "2.5M")


@pytest.fixture(scope="module")
def exported(server: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with sync.connect(server) as client:
        client.new("Hostile </title> & co")
        client.ask_text("".join(HOSTILE))
        client.ask_text("!tool now {}")
        session_id = client.session_id
    home = tmp_path_factory.mktemp("exports")
    file = home / "page.html"
    arguments = ("export", session_id, "--format", "html", "-o", str(file))
    done = run_nplt(*arguments, home=home, server=server)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return file


def test_export_html_writes_one_self_contained_page(exported: Path) -> None:
    read = Reading(exported.read_text())
    read.check_harmless()
    assert "Hostile </title> & co" in read.text
    assert read.tags.count("details") == 1
    assert read.tags.count("svg") == 1


@pytest.mark.slow
def test_a_real_browser_shows_the_html_page_and_runs_no_script(
    exported: Path, tmp_path: Path
) -> None:
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("Debian's chromium is not installed")
    picture = tmp_path / "page.png"
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/b"]
    done = subprocess.run(
        [browser, *options, f"--screenshot={picture}", "--dump-dom", exported.as_uri()],
        env=private_environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=True,
    )
    shown = Reading(done.stdout)
    shown.check_harmless()
    title = re.search("<title>(.*?)</title>", done.stdout)
    assert title is not None
    assert title.group(1) == "Hostile &lt;/title&gt; &amp; co", "no script has changed it"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 10_000, "a blank page takes less"
