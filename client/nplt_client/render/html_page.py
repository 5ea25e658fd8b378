"""A conversation as one HTML page that loads nothing else.

The page is written piece by piece, so that a long conversation is never held in memory.
Untrusted text is escaped, and `nplt_markdown` renders the Markdown. A content security policy
forbids scripts and remote content.
The chart of tokens per turn needs the end of the conversation, so it is written last and
placed on top by the style sheet.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from hashlib import sha256

from msgspec import Struct

from nplt_client.render.reports import format_time, remarks_on
from nplt_client.render.text import attachment_words, dump_json, number_in, objects_in
from nplt_markdown import plain, preformatted, prose
from nplt_protocol.json_text import JsonObject, JsonValue

SHEET = """
:root{color-scheme:light dark;--back:#fbfaf7;--card:#fff;--ink:#1f2328;--dim:#6a6f76;
--line:#e3e1da;--user:#eef3fb;--code:#f4f2ed;--accent:#2f6fd0;--sent:#b9c9e6;--bad:#b3261e;--string:#2d6a3e}
@media(prefers-color-scheme:dark){:root{--back:#16181c;--card:#1d2025;--ink:#e4e6e9;--dim:#979da6;
--line:#31353c;--user:#222b3a;--code:#14161a;--accent:#7fb0ff;--sent:#3d4f70;--bad:#ff8a80;--string:#8fd19e}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--ink);
font:16px/1.6 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif}
.page{max-width:860px;margin:0 auto;padding:2.5rem 1.25rem 4rem;display:flex;
flex-direction:column}
.head{order:0}.tokens{order:1}main{order:2}footer{order:3}
h1{font-size:1.6rem;line-height:1.25;margin:0 0 .35rem;overflow-wrap:anywhere}
.dim,time,footer{color:var(--dim);font-size:.84rem}
.tokens{margin:1.4rem 0 .4rem;padding:.8rem 1rem .4rem;background:var(--card);
border:1px solid var(--line);border-radius:10px}
.tokens svg{display:block;width:100%;height:auto;margin-top:.4rem}
.tokens h2{font-size:.9rem;margin:0;display:flex;flex-wrap:wrap;gap:.2rem 1.2rem}
.tokens h2 span{font-weight:400;color:var(--dim)}
.tokens h2 span::before{content:"";display:inline-block;width:.7em;height:.7em;
margin-right:.4em;border-radius:2px;background:var(--accent)}
.tokens h2 .in::before{background:var(--sent)}
svg text{font:11px system-ui,sans-serif;fill:var(--dim)}
svg .end{text-anchor:end}svg .mid{text-anchor:middle}
svg .grid{stroke:var(--line);stroke-dasharray:2 4}svg .floor{stroke:var(--line)}
svg .sent{fill:var(--sent)}svg .received{fill:var(--accent)}
.turn{margin-top:1.6rem;scroll-margin-top:1rem}
.turn:target{outline:2px solid var(--accent);outline-offset:8px;border-radius:10px}
.message{margin-top:.75rem;padding:.75rem 1rem;background:var(--card);
border:1px solid var(--line);border-radius:10px;unicode-bidi:isolate}
.message>header{display:flex;flex-wrap:wrap;gap:.1rem .8rem;align-items:baseline;
margin-bottom:.3rem}
.message>header b{font-size:.9rem}
.message>header time{margin-left:auto}
.user{background:var(--user);border-color:transparent}
.user .said{white-space:pre-wrap;overflow-wrap:anywhere}
.notice{border-style:dashed;color:var(--dim);font-size:.92rem}
.notice .said{white-space:pre-wrap;overflow-wrap:anywhere}
.bad{color:var(--bad);font-size:.84rem}
.said>:first-child{margin-top:0}.said>:last-child{margin-bottom:0}
.said{overflow-wrap:anywhere}
.said h1,.said h2,.said h3,.said h4{font-size:1.08rem;line-height:1.35;margin:1.1em 0 .4em}
.said h1{font-size:1.25rem}.said h2{font-size:1.15rem}
.said blockquote{margin:.6em 0;padding-left:1em;border-left:3px solid var(--line);
color:var(--dim)}
.said ul,.said ol{padding-left:1.5em}
.said table{border-collapse:collapse;display:block;overflow-x:auto}
.said th,.said td{border:1px solid var(--line);padding:.3em .7em;text-align:left}
.said .right{text-align:right}.said .center{text-align:center}
.said hr{border:0;border-top:1px solid var(--line)}
a{color:var(--accent)}
pre{background:var(--code);border:1px solid var(--line);border-radius:8px;padding:.7rem .9rem;
overflow-x:auto;font-size:.86rem;line-height:1.5;margin:.6em 0}
code,pre{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
:not(pre)>code{background:var(--code);border-radius:4px;padding:.1em .35em;font-size:.9em}
.k,.kd,.kn,.kr,.kt,.kc,.ow,.nt{color:var(--accent)}.c,.c1,.cm,.cp,.ch,.cs,.sd{color:var(--dim)}
.s,.s1,.s2,.sb,.sc,.se,.sh,.si,.sr,.sx,.ss,.gi{color:var(--string)}.gd,.gr,.err{color:var(--bad)}
details{margin:.5rem 0;border:1px solid var(--line);border-radius:8px;background:var(--code)}
summary{cursor:pointer;padding:.35rem .8rem;font-size:.88rem;overflow-wrap:anywhere}
details[open]>summary{border-bottom:1px solid var(--line)}
details h3{font-size:.78rem;font-weight:600;color:var(--dim);margin:.6rem .8rem 0}
details pre{border:0;margin:0;padding:.3rem .8rem .7rem;background:none;white-space:pre-wrap;
overflow-wrap:anywhere;max-height:32rem;overflow-y:auto}
footer{margin-top:2.5rem;padding-top:.8rem;border-top:1px solid var(--line)}
@media print{body{background:none}.page{max-width:none;padding:0}
.message,.tokens{break-inside:avoid-page}details pre{max-height:none}}
"""


WIDTH, HEIGHT, ROOM_ABOVE, ROOM_BELOW, ROOM_LEFT = 720, 132, 16, 20, 48
BARS_MAX = 120
_BAR_WIDTH_MAX = 28.0


class TurnTokens(Struct, kw_only=True):
    number: int
    sent: int = 0
    received: int = 0


def chart(turns: Sequence[TurnTokens]) -> str:
    """Draws the tokens per turn; returns an empty string if none were counted."""
    step = turns_per_bar(turns)
    bars: list[TurnTokens] = []
    for at in range(0, len(turns), step):
        sent = sum(turn.sent for turn in turns[at : at + step])
        received = sum(turn.received for turn in turns[at : at + step])
        bars.append(TurnTokens(number=turns[at].number, sent=sent, received=received))
    top = max((bar.sent + bar.received for bar in bars), default=0)
    if not top:
        return ""
    floor = HEIGHT - ROOM_BELOW
    drawn = "".join(_bars(bars, top=top, floor=floor, last=turns[-1].number))
    half = (floor + ROOM_ABOVE) / 2
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="tokens per turn">'
        f'<line class="grid" x1="{ROOM_LEFT}" y1="{ROOM_ABOVE}" x2="{WIDTH}" y2="{ROOM_ABOVE}"/>'
        f'<line class="grid" x1="{ROOM_LEFT}" y1="{half:g}" x2="{WIDTH}" y2="{half:g}"/>'
        f'<line class="floor" x1="{ROOM_LEFT}" y1="{floor}" x2="{WIDTH}" y2="{floor}"/>'
        f'<text class="end" x="{ROOM_LEFT - 6}" y="{ROOM_ABOVE + 4}">{short(top)}</text>'
        f'<text class="end" x="{ROOM_LEFT - 6}" y="{half + 4:g}">{short(top / 2)}</text>'
        f'<text class="end" x="{ROOM_LEFT - 6}" y="{floor + 4}">0</text>'
        f"{drawn}</svg>"
    )


def turns_per_bar(turns: Sequence[TurnTokens]) -> int:
    return -(-len(turns) // BARS_MAX) or 1


def _bars(bars: Sequence[TurnTokens], *, top: int, floor: int, last: int) -> Iterator[str]:
    """`last`: the number of the last turn."""
    room = (WIDTH - ROOM_LEFT) / len(bars)
    width = min(room * 0.72, _BAR_WIDTH_MAX)
    # Only as many turns are labelled as can be read side by side.
    every = -(-len(bars) * 40 // (WIDTH - ROOM_LEFT)) or 1
    ends = [*(bar.number - 1 for bar in bars[1:]), last]
    for place, (bar, end) in enumerate(zip(bars, ends, strict=True)):
        # A few bars are placed together at the left, not spread over the width.
        step = min(room, _BAR_WIDTH_MAX * 1.6)
        left = ROOM_LEFT + 8 + place * step if step < room else ROOM_LEFT + place * room
        scale = (floor - ROOM_ABOVE) / top
        sent, received = bar.sent * scale, bar.received * scale
        name = f"turn {bar.number}" if end == bar.number else f"turns {bar.number}–{end}"
        yield (
            f'<a href="#turn-{bar.number}"><title>{name}: {bar.sent:,} in, '
            f"{bar.received:,} out</title>"
            f'<rect class="sent" x="{left:.1f}" y="{floor - sent:.1f}" width="{width:.1f}" '
            f'height="{sent:.1f}"/>'
            f'<rect class="received" x="{left:.1f}" y="{floor - sent - received:.1f}" '
            f'width="{width:.1f}" height="{received:.1f}"/></a>'
        )
        if place % every == 0:
            yield (
                f'<text class="mid" x="{left + width / 2:.1f}" y="{HEIGHT - 5}">{bar.number}</text>'
            )


def short(number: float) -> str:
    """Shortens a number for the axis: 1234 → 1.2k."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.3g}"


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
    turns: list[TurnTokens] = []
    turn_id: JsonValue = None
    count, first, last = 0, "", ""
    for message in messages:
        count, last = count + 1, str(message.get("timestamp") or "")
        first = first or last
        if not turns or message.get("turn_id") != turn_id:
            yield "</section>\n" if turns else ""
            turn_id = message.get("turn_id")
            turns.append(TurnTokens(number=len(turns) + 1))
            yield f'<section class="turn" id="turn-{len(turns)}">\n'
        if isinstance(usage := message.get("usage"), dict):
            turns[-1].sent += max(0, number_in(usage, "input_tokens"))
            turns[-1].received += max(0, number_in(usage, "output_tokens"))
        yield _message(message)
    yield "</section>\n" if turns else '<p class="dim">No messages yet.</p>\n'
    yield "</main>\n"
    if drawing := chart(turns):
        per_bar = turns_per_bar(turns)
        per_what = "turn" if per_bar == 1 else f"{per_bar} turns"
        yield (
            f'<section class="tokens"><h2>Tokens per {per_what} '
            f'<span class="in">{sum(turn.sent for turn in turns):,} in</span> '
            f"<span>{sum(turn.received for turn in turns):,} out</span></h2>{drawing}</section>\n"
        )
    zone = datetime.now(UTC).astimezone().tzname() or ""
    span = f" · {format_time(first)} to {format_time(last)} {zone}" if first else ""
    yield (
        f"<footer>{count:,} messages in {len(turns):,} turns{plain(span)} · kept by nplt</footer>\n"
        "</div>\n</body>\n</html>\n"
    )


def _message(message: JsonObject) -> str:
    role, state = str(message.get("role")), str(message.get("state") or "")
    timestamp = str(message.get("timestamp") or "")
    model = str(message.get("model") or "")
    kind = role if role in ("user", "assistant") else "notice"
    calls = "".join(map(_call, objects_in(message.get("tool_calls"))))
    files = "".join(
        f'<div class="dim">{plain(attachment_words(attached))}</div>\n'
        for attached in objects_in(message.get("attachments"))
    )
    who = {"user": "You", "assistant": "Answer"}.get(role) or plain(role.capitalize())
    content = ""
    if text := str(message.get("content") or ""):
        inner = prose(text) if kind == "assistant" else plain(text)
        content = f'<div class="said" dir="auto">{inner}</div>\n'
    remarks = [state] if state not in ("", "completed") else []
    outcome = "".join(
        f'<span class="bad">{plain(words)}</span>' for words in (*remarks, *remarks_on(message))
    )
    return (
        f'<article class="message {kind}"><header><b>{who}</b> '
        f'<span class="dim">{plain(model)}</span> {outcome}'
        f'<time datetime="{plain(timestamp)}">{plain(format_time(timestamp))}</time></header>\n'
        f"{content}{files}{calls}</article>\n"
    )


def _call(call: JsonObject) -> str:
    status, duration = str(call.get("status") or "pending"), call.get("duration")
    took = f" · {duration:.2f} s" if isinstance(duration, (int, float)) and duration else ""
    kind = "dim" if status in ("success", "pending") else "bad"
    cut = f" (cut; {plain(str(call.get('size')))} in all)" if call.get("truncated") else ""
    result = call.get("result")
    shown = result if isinstance(result, str) else _json(result)
    result_html = f"<h3>Result{cut}</h3>{preformatted(shown)}" if result not in (None, "") else ""
    return (
        f"<details><summary>⚙ <b>{plain(str(call.get('tool_name')))}</b> "
        f'<span class="{kind}">{plain(status)}{took}</span></summary>'
        f"<h3>Arguments</h3>{preformatted(_json(call.get('arguments')))}"
        f"{result_html}</details>\n"
    )


def _json(value: JsonValue) -> str:
    short = dump_json(value)
    return short if len(short) <= _LINE_CHARACTERS_MAX else dump_json(value, pretty=True)
