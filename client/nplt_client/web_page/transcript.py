"""The page, piece by piece, so that a long conversation is never held whole.

The drawing of the tokens needs the end of the conversation, so it is written
last; the sheet puts it on top. No script, nothing from elsewhere: the page
itself forbids both to the browser, should something ever slip through.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator
from hashlib import sha256

from nplt_client.ask_json import json_text
from nplt_client.showing import when
from nplt_client.web_page.looks import SHEET
from nplt_client.web_page.safe_html import plain, preformatted, prose
from nplt_client.web_page.token_chart import TurnTokens, chart, turns_per_bar
from nplt_protocol.json_values import JsonObject, JsonValue

_SHEET_DIGEST = b64encode(sha256(SHEET.encode()).digest()).decode()
_RULES = (
    f"default-src 'none'; style-src 'sha256-{_SHEET_DIGEST}'; base-uri 'none'; form-action 'none'"
)
_LINE_CHARACTERS_MAX = 80


def page(name: str, session_id: str, messages: Iterable[JsonObject]) -> Iterator[str]:
    title = plain(" ".join(name.split()))
    yield (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_RULES}">\n'
        '<meta name="referrer" content="no-referrer">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{SHEET}</style>\n</head>\n<body>\n"
        f'<div class="page">\n<header class="head"><h1 dir="auto">{title}</h1>\n'
        f'<div class="dim">conversation {plain(session_id)}</div></header>\n<main>\n'
    )
    story = _Story()
    for message in messages:
        yield from story.tell(message)
    yield from story.end()


class _Story:
    """What has been told so far: which turn is open, and what each has used."""

    def __init__(self) -> None:
        self._turn_id: JsonValue = None
        self._turns: list[TurnTokens] = []
        self._messages = 0
        self._first = self._last = ""

    def tell(self, message: JsonObject) -> Iterator[str]:
        timestamp = str(message.get("timestamp") or "")
        self._messages += 1
        self._first, self._last = self._first or timestamp, timestamp
        if not self._turns or message.get("turn_id") != self._turn_id:
            yield "</section>\n" if self._turns else ""
            self._turn_id = message.get("turn_id")
            self._turns.append(TurnTokens(number=len(self._turns) + 1, sent=0, received=0))
            yield f'<section class="turn" id="turn-{len(self._turns)}">\n'
        self._count(message.get("usage"))
        yield _message(message)

    def _count(self, usage: JsonValue) -> None:
        if isinstance(usage, dict):
            here = self._turns[-1]
            self._turns[-1] = TurnTokens(
                number=here.number,
                sent=here.sent + _whole(usage.get("input_tokens")),
                received=here.received + _whole(usage.get("output_tokens")),
            )

    def end(self) -> Iterator[str]:
        yield "</section>\n" if self._turns else '<p class="dim">Nothing was said yet.</p>\n'
        yield "</main>\n"
        if drawing := chart(self._turns):
            sent = sum(turn.sent for turn in self._turns)
            received = sum(turn.received for turn in self._turns)
            yield (
                f'<section class="tokens"><h2>Tokens per {_so_many(turns_per_bar(self._turns))} '
                f'<span class="in">{sent:,} in</span> <span>{received:,} out</span></h2>'
                f"{drawing}</section>\n"
            )
        yield (
            f"<footer>{self._messages:,} messages in {len(self._turns):,} turns"
            f"{plain(_span(self._first, self._last))} · kept by nplt</footer>\n"
            "</div>\n</body>\n</html>\n"
        )


def _so_many(turns: int) -> str:
    return "turn" if turns == 1 else f"{turns} turns"


def _span(first: str, last: str) -> str:
    return f" · {when(first)} to {when(last)} UTC" if first else ""


def _whole(value: JsonValue) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _message(message: JsonObject) -> str:
    role, state = str(message.get("role")), str(message.get("state") or "")
    timestamp = str(message.get("timestamp") or "")
    model = str(message.get("model") or "")
    kind = role if role in ("user", "assistant") else "notice"
    told = f'<span class="bad">{plain(state)}</span>' if state not in ("", "completed") else ""
    return (
        f'<article class="message {kind}"><header><b>{_who(role)}</b> '
        f'<span class="dim">{plain(model)}</span> {told}'
        f'<time datetime="{plain(timestamp)}">{plain(when(timestamp))}</time></header>\n'
        f"{_said(kind, str(message.get('content') or ''))}{''.join(_calls(message))}</article>\n"
    )


def _who(role: str) -> str:
    return {"user": "You", "assistant": "Answer"}.get(role, plain(role.capitalize()))


def _said(kind: str, text: str) -> str:
    if not text:
        return ""
    inner = prose(text) if kind == "assistant" else plain(text)
    return f'<div class="said" dir="auto">{inner}</div>\n'


def _calls(message: JsonObject) -> Iterator[str]:
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict):
            yield _call(call)


def _call(call: JsonObject) -> str:
    status, duration = str(call.get("status") or "pending"), call.get("duration")
    took = f" · {duration:.2f} s" if isinstance(duration, (int, float)) and duration else ""
    kind = "dim" if status in ("success", "pending") else "bad"
    cut = f" (cut; {plain(str(call.get('size')))} in all)" if call.get("truncated") else ""
    result = call.get("result")
    shown = result if isinstance(result, str) else _json(result)
    told = f"<h3>Result{cut}</h3>{preformatted(shown)}" if result not in (None, "") else ""
    return (
        f"<details><summary>⚙ <b>{plain(str(call.get('tool_name')))}</b> "
        f'<span class="{kind}">{plain(status)}{took}</span></summary>'
        f"<h3>Arguments</h3>{preformatted(_json(call.get('arguments')))}"
        f"{told}</details>\n"
    )


def _json(value: JsonValue) -> str:
    short = json_text(value)
    return short if len(short) <= _LINE_CHARACTERS_MAX else json_text(value, pretty=True)
