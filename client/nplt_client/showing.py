"""Values of the wire as text for people. Pure, and safe for a terminal.

Content goes through the sanitizer like everything else here: these are
listings to be read; whoever wants the exact bytes asks for JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nplt_client.sanitize import sanitize, sanitize_line
from nplt_client.tables import pairs, table
from nplt_protocol.json_values import JsonObject, JsonValue
from nplt_protocol.replies import HistoryPage, ModelChoice, SessionRow, Status

SHORT_ID_MIN = 8


def short_ids(ids: Sequence[str]) -> dict[str, str]:
    """Prefixes long enough to tell these apart, and to be typed."""
    length = SHORT_ID_MIN
    while len({whole[:length] for whole in ids}) < len(set(ids)):
        length += 1
    return {whole: whole[:length] for whole in ids}


def when(timestamp: str) -> str:
    """`2026-11-16T04:01:52.123Z` → `2026-11-16 04:01`."""
    return timestamp[:16].replace("T", " ")


def sessions_table(rows: Sequence[SessionRow]) -> str:
    short = short_ids([row.session_id for row in rows])
    return table(
        ("ID", "NAME", "MESSAGES", "UPDATED (UTC)", "MODEL", "STATE"),
        [
            (
                short[row.session_id],
                row.name,
                str(row.message_count),
                when(row.updated_at),
                row.model,
                _state(row),
            )
            for row in rows
        ],
    )


def _state(row: SessionRow) -> str:
    marks = [
        word
        for word, holds in (
            ("current", row.is_current),
            ("pinned", row.pinned),
            ("archived", row.archived),
            ("damaged", row.damaged),
        )
        if holds
    ]
    return ", ".join([row.state, *marks])


def history_text(page: HistoryPage) -> str:
    blocks = [_title(page), *map(_message, page.messages)]
    if page.page.has_more_before:
        blocks.append(f"(older messages: nplt history … --before {page.page.before})")
    return "\n\n".join(blocks)


def _title(page: HistoryPage) -> str:
    return sanitize_line(f"{page.name} · {page.session_id} · {page.message_count} messages")


def _message(message: JsonObject) -> str:
    head = f"[{message.get('seq')}] {message.get('role')} · {when(str(message.get('timestamp')))}"
    for extra in ("model", "state"):
        if (said := message.get(extra)) and said != "completed":
            head += f" · {said}"
    lines = [sanitize_line(head)]
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict):
            lines.append(sanitize_line(f"tool {call.get('tool_name')} · {call.get('status')}"))
    lines.append(sanitize(str(message.get("content") or "")).rstrip("\n"))
    if message.get("truncated"):
        lines.append(sanitize_line(f"(cut; {message.get('size')} in all)"))
    return "\n".join(lines)


def models_text(choice: ModelChoice) -> str:
    return "\n".join(
        f"{'*' if model == choice.model else ' '} {sanitize_line(model)}" for model in choice.models
    )


def status_text(status: Status) -> str:
    return pairs(
        [
            ("server", status.server),
            ("uptime", _duration(status.uptime)),
            ("connections", str(status.connections)),
            *_flat("conversations", status.conversations),
            *_flat("turns", status.turns),
            *_flat("storage", status.storage),
            *_flat("versions", status.versions),
        ]
    )


def _flat(name: str, value: JsonValue) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(f"{name} {sanitize_line(key)}", inner)
    else:
        yield name, str(value)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
