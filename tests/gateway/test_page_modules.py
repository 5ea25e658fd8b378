"""The page's modules that need no document, run by node: they must agree with the Python ones."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protocol.test_spec import EXAMPLES

from nplt_protocol import MessageType
from nplt_protocol.codec import to_object
from nplt_protocol.frames import encode_message
from nplt_protocol.messages import AgentThought, EntryAdded, Event, TextDelta, TurnFinished
from nplt_protocol.resume import Cursor

MODULES = Path(__file__).with_name("page_modules.mjs")
NODE = shutil.which("node")

pytestmark = pytest.mark.skipif(NODE is None, reason="needs node")

TYPES = {
    TextDelta: MessageType.TEXT_DELTA,
    AgentThought: MessageType.AGENT_THOUGHT,
    EntryAdded: MessageType.ENTRY,
    TurnFinished: MessageType.TURN_FINISHED,
}


def run(*commands: tuple[str, dict[str, Any]]) -> list[Any]:
    assert NODE is not None
    done = subprocess.run(
        [NODE, "--no-warnings", str(MODULES)],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results: list[Any] = json.loads(done.stdout)
    return results


def test_every_example_of_the_specification_is_decoded_and_encoded() -> None:
    frames = [example.frame for example in EXAMPLES]
    decoded = run(*(("decode", {"pieces": [each.data.hex()]}) for each in EXAMPLES))
    assert decoded == [[[each.type, each.seq, each.payload.hex()]] for each in frames]
    encoded = run(
        *(
            ("encode", {"type": each.type, "seq": each.seq, "payload": each.payload.hex()})
            for each in frames
        )
    )
    assert encoded == [each.data.hex() for each in EXAMPLES]


def test_frames_split_at_every_byte_are_the_same_messages() -> None:
    data = b"".join(example.data for example in EXAMPLES[:12])
    whole, *split = run(
        ("decode", {"pieces": [data.hex()]}),
        *(("decode", {"pieces": [data[:at].hex(), data[at:].hex()]}) for at in range(len(data))),
        ("decode", {"pieces": [data[at : at + 1].hex() for at in range(len(data))]}),
    )
    assert len(whole) == 12
    assert all(each == whole for each in split)


@pytest.mark.parametrize("size", [0, 1, 65_534, 65_535, 65_536, 131_070, 131_071, 200_000])
def test_long_messages_are_fragmented_and_joined_as_the_server_does(size: int) -> None:
    payload = bytes(at % 251 for at in range(size))
    expected = encode_message(7, 9, payload)
    (encoded, decoded) = run(
        ("encode", {"type": 7, "seq": 9, "payload": payload.hex()}),
        ("decode", {"pieces": [expected[:70_000].hex(), expected[70_000:].hex()]}),
    )
    assert encoded == expected.hex()
    assert decoded == [[7, 9, payload.hex()]]


def test_a_foreign_frame_between_fragments_drops_the_part() -> None:
    part = encode_message(7, 9, bytes(65_536))[: 5 + 65_535]
    (decoded,) = run(("decode", {"pieces": [part.hex(), encode_message(4, 1, b"x").hex()]}))
    assert decoded == [[4, 1, b"x".hex()]]


def test_offsets_count_code_points() -> None:
    texts = ["", "abc", "漢字", "a😀b", "👩‍👩‍👧", "e\u0301"]
    results = run(*(("points", {"text": text, "count": 2}) for text in texts))
    assert results == [[len(text), text[2:]] for text in texts]


PIECES = st.text(alphabet="ab😀漢", min_size=1, max_size=4)


@st.composite
def streams(draw: st.DrawFn) -> list[Event]:
    """The events of turns, with repetitions and gaps as after a lost connection."""
    events: list[Event] = []
    seq = 0
    for turn in range(draw(st.integers(1, 2))):
        turn_id = f"t{turn}"
        for call in range(draw(st.integers(1, 2))):
            offset = 0
            for text in draw(st.lists(PIECES, max_size=4)):
                events.append(
                    TextDelta(session_id="s", turn_id=turn_id, call=call, offset=offset, text=text)
                )
                events.append(
                    AgentThought(
                        session_id="s",
                        turn_id=turn_id,
                        type="reasoning",
                        call=call,
                        offset=offset,
                        text=text,
                    )
                )
                offset += len(text)
            seq += 1
            events.append(EntryAdded(session_id="s", entry={"seq": seq}, turn_id=turn_id))
        events.append(
            TurnFinished(session_id="s", turn_id=turn_id, state="completed", seq=seq, usage={})
        )
    order = draw(st.lists(st.integers(0, len(events) - 1), max_size=len(events)))
    cut = draw(st.integers(0, len(events)))
    return [*events[:cut], *(events[at] for at in order), *events[cut:]]


@settings(max_examples=15)
@given(st.lists(streams(), min_size=20, max_size=20))
def test_the_cursor_takes_what_that_of_the_library_takes(found: list[list[Event]]) -> None:
    commands: list[tuple[str, dict[str, Any]]] = []
    expected = []
    for events in found:
        cursor = Cursor("s")
        rows = []
        for event in events:
            taken = cursor.take(event)
            text = None if taken is None else getattr(taken, "text", "")
            rows.append((text, cursor.attach()))
        expected.append([(text, to_object(each)) for text, each in rows])
        sent = [(TYPES[type(event)], to_object(event)) for event in events]
        commands.append(("follow", {"session_id": "s", "events": sent}))
    for wanted_rows, results in zip(expected, run(*commands), strict=True):
        for (text, attach), (taken, own) in zip(wanted_rows, results, strict=True):
            assert (None if taken is None else taken.get("text", "")) == text
            wanted = {name: value for name, value in attach.items() if name != "observer"}
            assert own == wanted


def _message(seq: int, role: str, turn: str, content: str) -> dict[str, Any]:
    return {
        "seq": seq, "role": role, "content": content, "turn_id": turn, "tool_calls": [],
        **({"state": "completed"} if role == "assistant" else {}),
    }  # fmt: skip


def _attached(head: int) -> dict[str, Any]:
    return {
        "session_id": "s", "name": "n", "model": "m", "head_seq": head, "active_turn": None,
        "queue": [], "pending_approvals": [], "clients": [{}],
    }  # fmt: skip


_FRESH: dict[str, Any] = {"attached": _attached(0), "request": {"after_seq": 0}}


def _page(messages: list[dict[str, Any]], head: int) -> dict[str, Any]:
    edges = {"has_more_before": False, "has_more_after": False, "before": 0, "after": 0}
    return {"name": "n", "head_seq": head, "messages": messages, "page": edges}


def _entry(seq: int, kind: str, turn: str, content: str) -> dict[str, Any]:
    more = {"state": "completed"} if kind == "model_output" else {}
    role = {"model_input": "user", "model_output": "assistant"}[kind]
    entry = {"seq": seq, "kind": kind, "role": role, "turn_id": turn, "content": content, **more}
    return {"session_id": "s", "turn_id": turn, "call": 0, "entry": {**entry, "tool_calls": []}}


def test_entries_and_pages_never_show_a_message_twice() -> None:
    entries = [_entry(1, "model_input", "t", "a"), _entry(2, "model_output", "t", "b")]
    page = _page([_message(1, "user", "t", "a"), _message(2, "assistant", "t", "b")], 2)
    shown = [
        run(("conversation", {**_FRESH, "steps": steps}))
        for steps in (
            [[0x28, entries[0]], [0x28, entries[1]], ["page", page]],
            [["page", page], [0x28, entries[0]], [0x28, entries[1]], [0x28, entries[1]]],
            [[0x28, entries[0]], ["page", page], ["older", page], [0x28, entries[1]]],
        )
    ]  # fmt: skip
    assert [each[0]["messages"] for each in shown] == [[[1, "a"], [2, "b"]]] * 3
    assert [each[0]["queue"] for each in shown] == [[], [], []]


def test_a_message_that_came_while_the_page_was_read_is_kept() -> None:
    answer = [0x28, _entry(2, "model_output", "t", "b")]
    page = ["page", _page([_message(1, "user", "t", "a")], 2)]
    kept, dropped = run(
        *(
            (
                "conversation",
                {"attached": _attached(0), "request": {"after_seq": 0}, "steps": steps},
            )
            for steps in ([["ask", None], answer, page], [answer, ["ask", None], page])
        )
    )
    assert kept["messages"] == [[1, "a"], [2, "b"]]
    assert dropped["messages"] == [[1, "a"]]


def test_a_prompt_that_waited_is_shown_after_the_answer_before_it() -> None:
    steps = [
        [0x28, _entry(1, "model_input", "t1", "first")],
        [0x20, {"session_id": "s", "turn_id": "t1", "seq": 1, "model": "m"}],
        [0x28, _entry(2, "model_input", "t2", "second")],
        [0x21, {"session_id": "s", "turn_id": "t1", "call": 0, "offset": 0, "text": "an"}],
        [0x28, _entry(3, "model_output", "t1", "answer")],
    ]
    (shown,) = run(("conversation", {**_FRESH, "steps": steps}))
    assert shown["messages"] == [[1, "first"], [3, "answer"], [2, "second"]]
    assert (shown["queue"], shown["live"]) == (["t2"], None)


def test_an_entry_that_takes_others_back_asks_for_the_page_again() -> None:
    entry = {"session_id": "s", "entry": {"seq": 1, "kind": "rollback", "to_seq": 0}}
    (shown,) = run(
        (
            "conversation",
            {**_FRESH, "steps": [[0x28, entry]]},
        )
    )
    assert shown["needsReload"]


def test_prompts_without_a_receipt_survive_a_reload_of_the_page() -> None:
    prompts = [
        {"message_id": name, "session_id": "s", "text": name, "attachments": []} for name in "abc"
    ]
    (kept,) = run(("outbox", {"prompts": prompts, "confirmed": ["b"]}))
    assert kept == [["a", "a"], ["c", "c"]]


def test_an_export_fences_results_that_contain_fences() -> None:
    tool = {"tool_name": "cat", "arguments": {}, "result": "```\nx\n```"}
    message = {"role": "assistant", "content": "done", "tool_calls": [tool]}
    (text,) = run(("export", {"name": "n", "messages": [message]}))
    assert "````\ncat {}\n```\nx\n```\n````" in text


def test_times_and_counts_are_shown_as_people_say_them() -> None:
    now = "2026-03-15T12:00:00"
    times = ["2026-03-15T01:00:00", "2026-03-14T23:00:00", "2026-03-10T12:00:00", "2026-02-20"]
    ((groups, counts),) = run(
        ("texts", {"times": times, "now": now, "counts": [999, 1_500, 128_000, 2_000_000]})
    )
    assert groups == ["Today", "Yesterday", "Previous 7 days", "Previous 30 days"]
    assert counts == ["999", "1.5k", "128k", "2M"]


def test_future_times_are_shown_as_people_say_them() -> None:
    now = "2026-03-15T12:00:00"
    times = ["2026-03-15T18:00", "2026-03-16T09:00", "2026-03-18T09:00", "2026-04-02T09:00"]
    ((today, tomorrow, weekday, later),) = run(("future", {"times": times, "now": now}))
    assert today.startswith("today at ")
    assert tomorrow.startswith("tomorrow at ")
    assert weekday.startswith("on Wednesday at ")
    assert later.startswith("on ")
    assert "Apr" in later


def test_prompts_for_later_come_are_held_and_go() -> None:
    def entry(seq: int, kind: str, turn_id: str, **fields: object) -> list[Any]:
        return [0x28, {"session_id": "s", "entry": {"seq": seq, "kind": kind, **fields,
                                                    "turn_id": turn_id}}]  # fmt: skip

    due = "2030-01-01T00:00:00Z"
    steps = [
        entry(1, "later_prompt", "t1", content="first", not_before=due),
        entry(2, "later_prompt", "t2", content="second", not_before=due),
        entry(3, "later_prompt", "t3", content="third", not_before=due),
        entry(4, "later_change", "t2", change="held"),
        entry(5, "later_change", "t3", change="cancelled"),
    ]
    begun = [0x28, _entry(6, "model_input", "t1", "first")]
    released = entry(7, "later_change", "t2", change="released")
    before, after = run(
        ("conversation", {**_FRESH, "steps": steps}),
        ("conversation", {**_FRESH, "steps": [*steps, begun, released]}),
    )
    assert before["later"] == [["t1", due, False], ["t2", due, True]]
    assert after["later"] == [["t2", due, False]]
    assert (before["queue"], after["queue"]) == ([], ["t1"])
