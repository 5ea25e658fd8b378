"""What is kept of each sort of text, one rule at a time."""

from __future__ import annotations

import json
import re

import pytest
from tests.server.digest.results import levels_of_result

from nplt_server.digest import TextKind, kind_of_text, levels_of
from nplt_server.digest.prose import sentences_of
from nplt_storage.entries import LevelOfDetail

FILLING = "Nothing of note was said in this part of the text, which goes on for a while. "


def _at(level: LevelOfDetail, text: str) -> str:
    levels = levels_of(text)
    assert levels is not None
    return levels.to_plain_text(level)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("prose", FILLING * 10),
        ("prose", f"{FILLING}\n\n# Title\n\n- one\n- two\n- three\n- four\n\n{FILLING}"),
        (
            "prose",
            "Look:\n\n```python\nimport os\n\n\ndef f():\n    return os.name\n```\n\nDone.\n",
        ),
        ("prose", "a letter that is wrapped by hand after some sixty signs or so and\n" * 9),
        ("code", "import os\n\n\ndef f(x):\n    y = x + 1\n    return y\n\n\nclass A:\n    pass\n"),
        (
            "code",
            '#include <stdio.h>\n#include "a.h"\n\nint main(void) {\n  f();\n  g();\n}\n\n' * 2,
        ),
        ("table", "a,b,c\n" + "1,2,3\n" * 9),
        ("table", "name\tsize\n" + "x\t1\n" * 9),
        ("listing", "2026-01-01 10:00:00 INFO it is all well and good.\n" * 9),
        ("listing", "-rw-r--r-- 1 els els 1234 Mar 3 09:00 /home/els/orders/week.csv\n" * 9),
        ("diff", "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\n+new\n"),
    ],
)
def test_a_text_is_known_by_its_look(kind: TextKind, text: str) -> None:
    assert kind_of_text(text) == kind


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        (
            "Dr. No met J. Smith, e.g. on 3.5. It rained.",
            ["Dr. No met J. Smith, e.g. on 3.5.", "It rained."],
        ),
        ('He said "go." She went.', ['He said "go."', "She went."]),
        ("see v1.2.3 of a.b.c... and so on. End", ["see v1.2.3 of a.b.c... and so on.", "End"]),
        ("我们讨论了。好吗？好！", ["我们讨论了。", "好吗？", "好！"]),
        ("هل هذا صحيح؟ نعم.", ["هل هذا صحيح؟", "نعم."]),
        ("1. First thing. Second.", ["1. First thing.", "Second."]),
        (" \n ", []),
    ],
)
def test_sentences_end_where_a_reader_would_end_them(text: str, sentences: list[str]) -> None:
    assert [text[start:end] for start, end in sentences_of(text, 0, len(text))] == sentences


def test_what_is_left_out_is_marked_and_counted() -> None:
    text = f"It begins here. {FILLING * 100}It ends there."
    summary = _at("summary", text)
    assert summary.startswith("It begins here.")
    assert summary.endswith("It ends there.")
    assert "characters left out …]" in summary


def test_a_question_in_the_middle_is_in_the_summary() -> None:
    text = f"{FILLING * 30}Which of the two is older? {FILLING * 30}"
    assert "Which of the two is older?" in _at("summary", text)


def test_neither_a_greeting_nor_an_offer_of_help_is_the_gist() -> None:
    text = f"Sure, happy to help! The cause is a full disk on db-2. {FILLING * 5}\n\nLet me know!"
    assert _at("gist", text).startswith("The cause is a full disk on db-2.")
    assert "Let me know" not in _at("gist", text)


def test_what_sounds_like_a_greeting_and_holds_a_fact_is_kept() -> None:
    text = f"OK, the server is 10.0.0.5. {FILLING * 40}Great Britain left."
    assert _at("gist", text).startswith("OK, the server is 10.0.0.5.")
    assert _at("gist", text).endswith("Great Britain left.")


def test_headings_are_kept_in_order() -> None:
    text = "".join(f"## Part {number}\n\n{FILLING * 6}\n\n" for number in range(12))
    kept = re.findall(r"^## Part (\d+)", _at("summary", text), re.MULTILINE)
    assert kept == [str(number) for number in range(12)]


def test_a_fence_that_is_opened_is_closed() -> None:
    code = "".join(f"def function_{number}(x):\n    return x * {number}\n" for number in range(60))
    summary = _at("summary", f"{FILLING}\n\n```python\n{code}```\n\n{FILLING * 3}")
    assert "```python\ndef function_0(x):" in summary
    assert summary.count("```") == 2
    assert summary.count("def function_") > 10


def test_a_chinese_digest_keeps_whole_sentences() -> None:
    middle = "在此期间，所有订单将由南京的临时仓库处理。" * 60
    text = f"新仓库位于苏州工业园区。\n\n{middle}\n\n请问人员安排是否已经确定？谢谢！"
    gist = _at("gist", text)
    assert gist.startswith("新仓库位于苏州工业园区。")
    assert gist.endswith("请问人员安排是否已经确定？")


def test_chinese_has_its_levels_by_tokens_and_not_by_characters() -> None:
    text = "新仓库位于苏州工业园区，面积一万二千平方米。" * 39
    assert len(text) == 858
    assert len(_at("summary", text)) <= 410
    assert len(_at("gist", text)) <= 70


def test_an_error_in_a_fenced_log_is_in_the_gist() -> None:
    log = "2026-05-04 09:00:00 INFO  GET /orders 200 in 12 ms\n" * 60
    log += "2026-05-04 09:00:01 ERROR disk full on db-2\n" + log
    text = f"It fails since noon.\n\n```\n{log}```\n\n{FILLING * 3}"
    assert "ERROR disk full on db-2" in _at("summary", text)
    assert "ERROR disk full on db-2" in _at("gist", text)


def test_the_error_in_a_chinese_log_is_in_the_gist() -> None:
    line = "2026-05-04 09:00:00 [信息] 订单处理完成，耗时 12 毫秒\n"
    text = f"{line * 40}2026-05-04 09:00:01 [错误] 数据库磁盘已满\n{line * 40}"
    assert "[错误] 数据库磁盘已满" in _at("gist", text)
    assert "[81 lines, 1 with errors]" in _at("gist", text)


@pytest.mark.parametrize(
    "decision",
    [
        "My recommendation is PostgreSQL with monthly partitions.",
        "After a long discussion we decided to move on 14 March.",
        "The root cause was a connection that nobody closed.",
        "经过讨论，会议决定选择苏州的仓库。",
        "综合考虑，我建议采用第二个方案。",
    ],
)
def test_what_was_decided_in_the_middle_is_the_gist(decision: str) -> None:
    assert decision in _at("gist", f"{FILLING * 20}\n\n{decision} {FILLING * 20}")


def test_what_stands_below_a_heading_that_announces_a_decision_is_the_gist() -> None:
    text = f"# Move\n\n{FILLING * 9}\n\n## Decision\n\nWe move to wren.\n\n{FILLING * 9}"
    assert "We move to wren." in _at("gist", text)


def test_what_was_considered_is_not_what_was_decided() -> None:
    text = f"{FILLING * 9}If you recommend it, we could. {FILLING * 9}We decided to wait. {FILLING}"
    assert "We decided to wait." in _at("gist", text)
    assert "If you recommend it" not in _at("gist", text)


def test_what_is_written_from_right_to_left_stays_as_it_is() -> None:
    text = "המחסן החדש נמצא בחיפה. " + "כל ההזמנות יטופלו במחסן הזמני. " * 60 + "האם זה ברור?"
    assert _at("gist", text).startswith("המחסן החדש נמצא בחיפה.")
    assert _at("summary", text).endswith("האם זה ברור?")


def test_an_error_deep_inside_a_giant_log_is_found() -> None:
    line = "2026-05-04 09:00:00 INFO  GET /orders 200 in 12 ms\n"
    gist = _at("gist", f"{line * 3_000}2026-05-04 09:00:01 ERROR disk full on db-2\n{line * 3_000}")
    assert "[6,001 lines]" in gist
    assert "ERROR disk full on db-2" in gist


def test_the_result_of_a_tool_says_whose_it_is_and_how_it_went() -> None:
    levels = levels_of_result("read_file", "failed", FILLING * 40)
    assert levels is not None
    assert levels.to_plain_text("summary").startswith(f"read_file failed:\n{FILLING}")
    assert levels.to_plain_text("gist").startswith(f"read_file failed: {FILLING}")


def test_the_beginning_of_a_result_says_how_large_the_whole_is() -> None:
    whole = json.dumps({"path": "/srv/a", "rows": [{"id": n, "name": "x"} for n in range(9_000)]})
    levels = levels_of_result("query", "success", whole[:4_000], size=len(whole))
    assert levels is not None
    assert levels.to_plain_text("gist").startswith(
        f"query success, the beginning of {len(whole):,} bytes: [beginning of a JSON object"
    )
    assert '"path": "/srv/a"' in levels.to_plain_text("summary")
    assert '{"id": 0, "name": "x"}' in levels.to_plain_text("summary")


@pytest.mark.parametrize("end", range(300, 340))
def test_json_that_breaks_off_anywhere_is_still_read(end: int) -> None:
    text = json.dumps({"first": 1, "list": ['é "quoted" \\ \n'] * 40, "last": {"a": [True]}})
    assert _at("gist", text[:end]).startswith('[beginning of a JSON object, 2 keys] {"first": 1')


def test_numbers_in_json_keep_their_digits() -> None:
    text = json.dumps({"id": 18446744073709551617, "rest": ["x" * 30] * 20})
    assert '"id": 18446744073709551617' in _at("gist", text)


def test_half_a_surrogate_pair_in_json_does_not_get_out() -> None:
    text = '{"broken": "\\ud83d", "rest": "' + "x" * 300 + '"}'
    assert '"broken": "�"' in _at("gist", text)


def test_an_error_deep_inside_json_comes_first() -> None:
    inner = {"item": 7, "error": {"code": "SKU_UNKNOWN", "message": "no such product"}}
    text = json.dumps({"items": [{"id": n, "name": "x" * 20} for n in range(90)], "out": [inner]})
    error_text = '"error": {"code": "SKU_UNKNOWN", "message": "no such product"}'
    assert _at("gist", text).startswith(f"[JSON object, 2 keys] {error_text}")
    assert error_text in _at("summary", text)


def test_what_went_wrong_comes_first_in_the_gist_of_json() -> None:
    text = json.dumps({"request": {"id": "x" * 90}, "trace": ["y" * 90], "error": "no such table"})
    assert _at("gist", text).startswith('[JSON object, 3 keys] {"error": "no such table"')
