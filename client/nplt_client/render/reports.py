"""Formats listings, histories, context and usage reports as text for people. Pure.

The result is safe for a terminal. Fields that a newer server adds are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from nplt_client.render.answers import (
    fallback_words,
    hidden_words,
    joined,
    model_of,
    stop_words,
    tokens_of_answer,
)
from nplt_client.render.text import (
    attachment_words,
    dump_json,
    number_in,
    objects_in,
    pairs,
    sanitize,
    sanitize_line,
    shorten,
    table,
    word_in,
)
from nplt_protocol import messages
from nplt_protocol.json_text import JsonObject, JsonValue

SHORT_ID_MIN = 8


def short_ids(ids: Sequence[str]) -> dict[str, str]:
    """Returns prefixes of one length that tell these ids apart."""
    length = SHORT_ID_MIN
    while len({whole[:length] for whole in ids}) < len(set(ids)):
        length += 1
    return {whole: whole[:length] for whole in ids}


def format_time(timestamp: str) -> str:
    """Converts to the local time zone: `2026-11-16T04:01:52.123Z` → `2026-11-16 05:01`."""
    try:
        return f"{datetime.fromisoformat(timestamp).astimezone():%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError):
        return timestamp[:16].replace("T", " ")


INCOMPLETE = "the server still reads its files; the list is not complete yet"


def sessions_table(rows: Sequence[messages.SessionRow]) -> str:
    """Formats the table, and below it the problems of conversations and how to repair them."""
    short = short_ids([row.session_id for row in rows])
    cells: list[tuple[str, ...]] = []
    for row in rows:
        state = ", ".join(
            [row.state, *unread_words(row), *(["current"] * row.is_current), *row_flags(row)]
        )
        name, count, updated = row.name, str(row.message_count), format_time(row.updated_at)
        cells.append((short[row.session_id], name, count, updated, row.model, state))
    listed = table(("ID", "NAME", "MESSAGES", "UPDATED", "MODEL", "STATE"), cells)
    repairs = [sanitize_line(f"To repair {row.name!r}: {row.repair}") for row in rows if row.repair]
    warnings = [sanitize_line(f"{row.name!r}: {row.warning}") for row in rows if row.warning]
    return "\n".join([listed, *repairs, *warnings])


def unread_words(row: messages.SessionRow) -> list[str]:
    if not row.unread:
        return []
    return [f"{row.unread}{'+' if row.unread >= UNREAD_MAX else ''} unread"]


UNREAD_MAX: Final = 100
"""The server counts no further."""


def running_table(rows: Sequence[messages.SessionRow]) -> str:
    """Formats the conversations that are not at rest."""
    short = short_ids([row.session_id for row in rows])
    cells: list[tuple[str, ...]] = []
    for row in rows:
        since = format_time(row.running_since) if row.running_since else ""
        due = [f"due {format_time(row.due_at)}"] if row.due_at is not None else []
        state = ", ".join([row.state, *unread_words(row), *due])
        cells.append((short[row.session_id], row.name, state, since, row.model))
    return table(("ID", "NAME", "STATE", "SINCE", "MODEL"), cells)


def change_line(change: messages.SessionChanged) -> str:
    """Formats a change of a conversation as one line."""
    row, short = change.row, change.session_id[:SHORT_ID_MIN]
    if row is None:
        return sanitize_line(f"{short}  {change.what}")
    words = [row.state, *unread_words(row), *([change.what] if change.what != "state" else [])]
    return sanitize_line(f"{short}  {row.name}  {' · '.join(words)}")


def repair_text(done: messages.Repaired) -> str:
    if not done.says:
        return "nothing to repair"
    kept = f"{done.kept} entries are as they were"
    aside = [f"the original is kept as {done.original}"] if done.original else []
    return "\n".join(map(sanitize_line, [*done.says, kept, *aside]))


def trash_table(rows: Sequence[messages.SessionRow]) -> str:
    short = short_ids([row.session_id for row in rows])
    cells: list[tuple[str, ...]] = []
    for row in rows:
        deleted = format_time(row.deleted_at or "")
        cells.append((short[row.session_id], row.name, str(row.message_count), deleted))
    return table(("ID", "NAME", "MESSAGES", "DELETED"), cells)


def later_table(prompts: Sequence[messages.LaterTurn]) -> str:
    cells = [
        (
            each.turn_id,
            format_time(each.due_at),
            "held" if each.held else "rate limit" if each.limited else "waits",
            each.preview or "",
        )
        for each in prompts
    ]
    return table(("TURN", "DUE", "STATE", "TEXT"), cells)


def row_flags(row: messages.SessionRow) -> list[str]:
    flags = [flag for flag in ("pinned", "archived", "damaged") if getattr(row, flag)]
    if row.due_at is not None:
        flags.append(f"due {format_time(row.due_at)}")
    return [*flags, "older copy"] if row.warning else flags


def history_text(page: messages.HistoryPage, *, entries: bool = False) -> str:
    """Formats a page; with `entries` each entry has its kind and the fields of that kind."""
    words = [page.name, page.session_id, f"{page.message_count} messages"]
    title = sanitize_line(" · ".join([*words, page.model] if page.model else words))
    shown = map(_entry, page.messages) if entries else map(_message, joined(page.messages))
    what, option = ("entries", "--entries ") if entries else ("messages", "")
    older = f"(older {what}: nplt history … {option}--before {page.page.before})"
    return "\n\n".join([title, *shown, *([older] if page.page.has_more_before else [])])


_FIELD_WIDTH_MAX = 400
_SHOWN_ELSEWHERE = frozenset(
    ("seq", "id", "kind", "role", "content", "timestamp", "tool_calls", "turn_id", "sections")
)
_OF_A_CALL = "tool_name tool_call_id arguments parse_error parse_warning status duration result"


def _entry(entry: JsonObject) -> str:
    at = format_time(str(entry.get("timestamp")))
    lines = [sanitize_line(f"[{entry.get('seq')}] {entry.get('kind')} · {at}")]
    if turn_id := entry.get("turn_id"):
        lines.append(_field("turn", turn_id))
    for name, value in entry.items():
        if name not in _SHOWN_ELSEWHERE and value not in (None, "", {}, []):
            lines.append(_field(name, value))
    for call in objects_in(entry.get("tool_calls")):
        known = (key for key in _OF_A_CALL.split() if call.get(key) not in (None, "", {}))
        lines.append(_field("tool", {key: call[key] for key in known}))
    if content := entry.get("content"):
        lines.append(sanitize(str(content)).rstrip("\n"))
    return "\n".join([*lines, *_cut_words(entry)])


def _cut_words(entry: JsonObject) -> list[str]:
    if not entry.get("truncated"):
        return []
    return [sanitize_line(f"(cut; {entry.get('size')} in all)")]


def _field(name: str, value: JsonValue) -> str:
    shown = value if isinstance(value, str) else dump_json(value)
    return "    " + shorten(sanitize_line(f"{name}: {shown}"), _FIELD_WIDTH_MAX)


def _message(message: JsonObject) -> str:
    at = format_time(str(message.get("timestamp")))
    head = f"[{message.get('seq')}] {message.get('role')} · {at}"
    for extra in ("model", "state"):
        if (value := message.get(extra)) and value != "completed":
            head += f" · {value}"
    if why := message.get("rejected"):
        head += f" · rejected: {why}"
    head += "".join(f" · {words}" for words in remarks_on(message))
    lines = [sanitize_line(head)]
    lines += map(attachment_words, objects_in(message.get("attachments")))
    for call in objects_in(message.get("tool_calls")):
        lines.append(sanitize_line(f"tool {call.get('tool_name')} · {call.get('status')}"))
    lines.append(sanitize(str(message.get("content") or "")).rstrip("\n"))
    return "\n".join([*lines, *_cut_words(message)])


def remarks_on(message: JsonObject) -> list[str]:
    """Says why an answer is not whole, why another model gave it, and from whose models a message
    is hidden."""
    stop = stop_words(word_in(message, "stop_reason"), tokens_of_answer(message))
    instead = fallback_words(model_of(message), message.get("fallback_from"))
    return [words for words in (stop, instead, hidden_words(message)) if words]


def listed_models(choice: messages.ModelChoice) -> list[str]:
    """Returns the models that only the providers' own lists have."""
    found: list[str] = []
    for provider, catalog in (choice.listed or {}).items():
        names = catalog.get("models") if isinstance(catalog, dict) else None
        listed = names if isinstance(names, list) else ()
        found += [f"{provider}/{name}" for name in listed if isinstance(name, str)]
    return [name for name in found if name not in choice.models]


def models_text(choice: messages.ModelChoice) -> str:
    # One table, so that the columns of all lists are below each other.
    names = (*choice.models, *listed_models(choice))
    if choice.facts:
        rows = [[name, *_fact_cells(choice.facts, name)] for name in names]
        heading, *cells = table(_FACT_HEADINGS, rows, cell_width_max=_FACT_WIDTH_MAX).splitlines()
        shown = [f"  {heading}"]
    else:  # of an older server
        shown, cells = [], [sanitize_line(name) for name in names]
    line_of = {
        name: f"{'*' if name == choice.model else ' '} {line}"
        for name, line in zip(names, cells, strict=True)
    }
    shown += [line_of[name] for name in choice.models]
    for provider, catalog in (choice.listed or {}).items():
        more = [n for n in names[len(choice.models) :] if n.startswith(f"{provider}/")]
        if more and isinstance(catalog, dict):
            at = format_time(str(catalog.get("at")))
            shown += ["", sanitize_line(f"also listed by {provider} ({at}):")]
            shown += [line_of[name] for name in more]
    if choice.learned:
        shown += ["", "learned from refusals, for a week:"]
    for model, learned in (choice.learned or {}).items():
        if isinstance(learned, dict):
            at = format_time(str(learned.get("at")))
            shown.append("  " + sanitize_line(f"{model}: {learned.get('form')} ({at})"))
    return "\n".join(shown)


_FACT_HEADINGS: Final = ("model", "window", "$ in/out", "tools", "pictures", "pdf", "from")
_FACT_WIDTH_MAX: Final = 120


def _fact_cells(facts: JsonObject | None, name: str) -> list[str]:
    """The cells of a model's row: its window in tokens, its prices for a million tokens, what it
    takes, and where each of it is from."""
    if facts is None:
        return []
    known = facts.get(name)
    if not isinstance(known, dict):
        return [""] * (len(_FACT_HEADINGS) - 1)
    window, ceiling = number_in(known, "context_tokens"), number_in(known, "ceiling_tokens")
    price_in, price_out = known.get("price_in"), known.get("price_out")
    has_price = isinstance(price_in, int | float) and isinstance(price_out, int | float)
    return [
        f"{window:,} of {ceiling:,}" if ceiling > window else f"{window:,}",
        f"{price_in:g}/{price_out:g}" if has_price else "unknown",
        *("yes" if known.get(what) else "no" for what in ("tools", "images", "pdfs")),
        _sources(known),
    ]


def model_words(choice: messages.ModelChoice, name: str) -> str:
    """The window and the prices of a model, for a list to choose from."""
    cells = _fact_cells(choice.facts, name)
    if not any(cells):
        return ""
    window, prices, *_ = cells
    price_in, _, price_out = prices.partition("/")
    known = {"unknown": "price unknown", "0/0": "free"}
    price = known.get(prices, f"${price_in} in, ${price_out} out per million")
    return f"{window} tokens · {price}"


_SOURCED: Final = {
    "context_tokens": "window",
    "prices": "price",
    "tools": "tools",
    "images": "pictures",
    "pdfs": "pdf",
}


def _sources(known: JsonObject) -> str:
    """`window, price: the list; pictures: nplt's table`."""
    named = known.get("sources")
    sources = {"context_tokens": "assumed", **(named if isinstance(named, dict) else {})}
    by_source: dict[str, list[str]] = {}
    for name, words in _SOURCED.items():
        if name in sources:
            by_source.setdefault(str(sources[name]), []).append(words)
    return "; ".join(f"{', '.join(names)}: {source}" for source, names in by_source.items())


def status_text(status: messages.Status) -> str:
    rows = [
        ("server", status.server),
        ("uptime", _duration(status.uptime)),
        ("connections", str(status.connections)),
    ]
    if status.http is not None:
        rows.append(("http", sanitize_line(status.http)))
    for part in ("conversations", "turns", "storage", "versions"):
        rows += _flat(part, getattr(status, part))
    for name, server in (status.mcp_servers or {}).items():
        if isinstance(server, dict):
            rows.append((f"mcp {sanitize_line(name)}", _mcp_server(server)))
    # Each server of the cluster gets a line; a mark shows the one that sent this reply.
    cluster = status.cluster or {}
    for member in objects_in(cluster.get("members")):
        place = member.get("address") or f"{member.get('host')}, process {member.get('pid')}"
        here = ", this one" if member.get("id") == cluster.get("member") else ""
        uptime, owned = member.get("uptime"), member.get("owned")
        up = f", up {_duration(uptime)}" if isinstance(uptime, int | float) else ""
        owns = f"{owned} conversation{'' if owned == 1 else 's'} open"
        rows.append(("member", f"{place}: {owns}{up}{here}"))
    counts = cluster.get("counts")
    for name, count in counts.items() if isinstance(counts, dict) else ():
        if count:
            rows.append((sanitize_line(name.replace("_", " ")), str(count)))
    problems = cluster.get("problems")
    for problem in problems if isinstance(problems, list) else ():
        rows.append(("problem", sanitize_line(str(problem))))
    here_now = status.conversation or {}
    if model := word_in(here_now, "model"):
        rows.append(("model", model))
    options = here_now.get("options")
    for name, value in options.items() if isinstance(options, dict) else ():
        rows.append((sanitize_line(name), str(value)))
    return pairs(rows)


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


def hits_text(hits: Sequence[messages.SearchHit]) -> str:
    """Formats each hit in two lines: the place, and the words found there."""
    short = short_ids([hit.session_id for hit in hits])
    lines: list[str] = []
    for hit in hits:
        who = "its name" if hit.role == "name" else f"[{hit.seq}] {hit.role}"
        place = f"{short[hit.session_id]}  {hit.name} · {who} · {format_time(hit.timestamp)}"
        lines.append(f"{sanitize_line(place)}\n    {sanitize_line(hit.snippet)}".rstrip())
    return "\n".join(lines)


_DESCRIPTION_WIDTH_MAX = 72

_WHY = {
    "head": "begins the epoch",
    "omitted": "no room",
    "compacted": "summed up",
    "window": "before the window",
    "later": "not its turn yet",
    "unpaired": "call without result",
    "abandoned": "left behind",
    "cancelled": "taken back",
    "quarantined": "refused by a provider",
    "not_for_models": "not for models",
    "not_held": "too long ago",
    "mixed": "several reasons",
}
"""Reason codes in short words, for a column; unknown codes are shown unchanged."""

_EPOCH_REASONS = {
    "budget": "there is no more room",
    "compaction": "there is a new summary",
    "clear": "it was cleared",
    "rollback": "it was rolled back",
    "quarantine": "an entry was set aside",
    "system": "the instruction changed",
    "tools": "the tools changed",
    "window": "the window moved on",
    "reach": "older entries are out of reach",
    "asked": "it was asked for",
    "pictures": "older pictures were put away",
    "reasoning": "the provider no longer takes older reasoning",
}


def context_text(account: messages.ContextAccount) -> str:
    header = ("ENTRY", "WHO", "DETAIL", "TOKENS", "WHY", "WHAT")
    rows = table(header, map(_context_row, account.entries), numbers=("TOKENS",))
    totals, left_out = account.totals, number_in(account.totals, "left_out")
    called = account.model
    if account.call is not None:
        called = f"sent to {called} for entry {account.call}"
    words = [
        called,
        _share(number_in(totals, "tokens"), account.budget_tokens),
        f"tools {number_in(totals, 'tools'):,}",
        f"{left_out:,} left out" if left_out else "",
        f"epoch of entry {account.epoch}" if account.epoch else "no epoch yet",
        "trimmed for this model's window" if totals.get("trimmed") else "",
    ]
    if totals.get("exact") is False:
        words.append(
            f"built again, not exact: {number_in(totals, 'sent_tokens'):,} tokens were counted then"
        )
    if reason := account.begins_epoch:
        words.append(f"a new epoch would begin: {_EPOCH_REASONS.get(reason, reason)}")
    return f"{rows}\n{sanitize_line(' · '.join(filter(None, words)))}"


def _context_row(row: JsonObject) -> tuple[str, ...]:
    seq, through = number_in(row, "seq"), number_in(row, "through_seq")
    role, kind = word_in(row, "role"), word_in(row, "kind")
    detail, reason = word_in(row, "detail"), word_in(row, "reason")
    place = f"{seq}-{through}" if through > seq else str(seq)
    if not seq:
        place = "next" if kind == "model_input" else "-"
    why = "" if reason in (detail, role, kind) else _WHY.get(reason) or reason.replace("_", " ")
    what = _first_words(row)
    if through > seq and "detail" in row:  # one row for several entries
        what = f"({through - seq + 1:,} entries)"
    tokens = f"{number_in(row, 'tokens'):,}"
    who = role or kind.replace("_", " ") or "several"
    return place, who, detail or "-", tokens, why, what


def _first_words(row: JsonObject) -> str:
    """Returns the beginning of the text, or else of the tool calls or their results."""
    if content := word_in(row, "content").strip():
        return content
    calls = (
        f"calls {word_in(call, 'tool_name')} {word_in(call, 'arguments')}"
        for call in objects_in(row.get("tool_calls"))
    )
    results: list[str] = []
    for result in objects_in(row.get("results")):
        status = word_in(result, "status")
        failed = "" if status in ("", "success") else f" ({status})"
        results.append(f"{word_in(result, 'tool_name')}{failed}: {word_in(result, 'result')}")
    return "; ".join((*calls, *results))


def tools_text(listed: messages.ToolList) -> str:
    rows: list[tuple[str, ...]] = []
    for tool in listed.tools:
        about = _first_sentence(word_in(tool, "description"))
        rows.append((*(word_in(tool, name) for name in ("name", "class", "policy")), about))
    header = ("NAME", "CLASS", "POLICY", "DESCRIPTION")
    parts = [table(header, rows, cell_width_max=_DESCRIPTION_WIDTH_MAX) if rows else "no tools"]
    wanted = [tool for tool in listed.tools if tool.get("policy") != "deny"]
    if unoffered := sum(tool.get("offered") is False for tool in wanted):
        parts.append(
            f"{unoffered:,} of them are not offered: models take no more. Deny some that you"
            " do not need (docs/tools.md)."
        )
    for name, server in (listed.mcp_servers or {}).items():
        if isinstance(server, dict):
            lines = [f"MCP server {sanitize_line(name)}: {_mcp_server(server)}"]
            written = server.get("stderr")
            for line in written if isinstance(written, list) else ():
                lines.append(f"  stderr: {sanitize_line(str(line))}")
            for one in objects_in(server.get("sources")):
                # References are not shortened: people copy them to attach the source.
                description = shorten(
                    _first_sentence(word_in(one, "description")), _DESCRIPTION_WIDTH_MAX
                )
                reference = sanitize_line(word_in(one, "reference"))
                lines.append(f"  {reference}  {word_in(one, 'kind')}: {description}")
            parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _mcp_server(server: JsonObject) -> str:
    tools = number_in(server, "tools")
    words = [word_in(server, "state"), f"{tools:,} {'tool' if tools == 1 else 'tools'}"]
    words += [word for key in ("error", "note") if (word := word_in(server, key))]
    return sanitize_line(", ".join(words))


def _first_sentence(text: str) -> str:
    first, stop, _ = sanitize_line(text).partition(". ")
    return first + stop.strip()


def usage_text(account: messages.UsageAccount) -> str:
    rows = [("model", account.model), ("billed", _billed(account.billed))]
    models = objects_in(account.billed.get("models"))
    for bill in models if len(models) > 1 else ():
        cost = word_in(bill, "cost")
        price = f"{cost} USD" if cost else "price unknown"
        rows.append((f"  {sanitize_line(word_in(bill, 'model'))}", f"{_billed(bill)}, {price}"))
    occupied, estimate = account.occupancy, account.estimate
    share = _share(number_in(occupied, "tokens"), number_in(occupied, "context_tokens"))
    counted_by = {"api": ", as the provider counts", "counted": ", as the server counts"}
    source = counted_by.get(word_in(occupied, "source"), "")
    counter = word_in(estimate, "counter")
    by = f" ({counter})" if counter else ""
    percent = estimate.get("percent")
    room = f", {percent:.1f} % of what may be sent" if isinstance(percent, int | float) else ""
    return pairs(
        [
            *rows,
            ("occupancy", f"{share} in the last call{source}"),
            ("estimate", f"{number_in(estimate, 'tokens'):,} tokens in the next call{by}{room}"),
            ("cost", _cost(account.cost)),
        ]
    )


def _billed(bill: JsonObject) -> str:
    cached, calls = number_in(bill, "cached_tokens"), number_in(bill, "calls")
    kept, guessed = number_in(bill, "cache_write_tokens"), number_in(bill, "estimated_calls")
    parts = [f"{cached:,} cached"] * bool(cached) + [f"{kept:,} written to the cache"] * bool(kept)
    from_cache = f" ({', '.join(parts)})" if parts else ""
    of_them = f" ({guessed:,} estimated)" if guessed else ""
    return (
        f"{number_in(bill, 'input_tokens'):,} tokens in{from_cache}, "
        f"{number_in(bill, 'output_tokens'):,} out, "
        f"{calls:,} {'call' if calls == 1 else 'calls'}{of_them}"
    )


def _cost(cost: JsonObject | None) -> str:
    if cost is None:
        return "unknown: these models have no prices in the settings"
    partly = " and an unknown part: some models have no price" if cost.get("partial") else ""
    return f"{cost.get('amount')} {word_in(cost, 'currency')}".rstrip() + partly


def epoch_text(begun: messages.EpochBegun) -> str:
    """Formats the result of a compaction."""
    summary = "" if begun.compaction is None else f", with a summary (entry {begun.compaction})"
    return f"compacted: {begun.tokens_before:,} tokens are now {begun.tokens_after:,}{summary}"


def _share(tokens: int, of: int) -> str:
    if of <= 0:
        return f"{tokens:,} tokens"
    return f"{tokens:,} of {of:,} tokens ({100 * tokens / of:.1f} %)"


def first_contact_text(
    model: str, models: Sequence[str], *, is_chosen: bool = False, address: str = ""
) -> str:
    """Introduces an empty conversation: which model answers and why, how to get a better one,
    and what to try. `is_chosen`: the person chose the model. `address`: where the server in the
    background listens, if not at the default port."""
    provider = model.partition("/")[0]
    has_vendor = any(one.partition("/")[0] not in ("offline", "local") for one in models)
    about = {
        "offline": ": it only repeats what you type",
        "local": ": a very small model on this machine",
    }.get(provider, " here")
    what = f"{model} answers{about}"
    if has_vendor or is_chosen:
        chosen = ", as you chose" if is_chosen else ""
        lines = [f"{what}{chosen}. /model lists {len(models)} models."]
    else:
        lines = [
            f"{what}, because the server found no key.",
            "For a better one, export OPENAI_API_KEY=… or ANTHROPIC_API_KEY=… and enter: "
            "nplt server restart",
            "Ollama, llama.cpp and LM Studio are found by themselves: start one, and /model lists "
            "its models.",
        ]
    if address:
        lines.append(f"Your server listens at {address}; nplt finds it there by itself.")
    if provider == "offline":
        tries = [("hello", "an answer"), ("!tool now {}", "an answer that calls a tool")]
    else:
        tries = [("What can you do?", "an answer"), ("/attach FILE", "ask about a file")]
    rows = pairs([*tries, ("/help", "all commands and keys")])
    return "\n".join([*lines, "", "Try:", *(f"  {row}" for row in rows.splitlines())])


_KINDS: Final = {
    "model_input": "a prompt",
    "model_output": "an answer",
    "tool_results": "a tool's result",
    "renamed": "a name",
}


def copies_lines(done: messages.Redacted) -> list[str]:
    """Lists the other entries with the erased text."""
    lines = ["the same text, or a secret in it, is also in:"]
    for one in done.copies:
        kind = _KINDS.get(one.kind, one.kind.replace("_", " "))
        lines.append("  " + sanitize_line(f"entry {one.seq} of {one.name!r} ({kind})"))
    return lines


def remains_lines(done: messages.Redacted) -> list[str]:
    """Names what was not searched, and what no request reaches."""
    lines = [] if done.searched_all else ["not all conversations were searched for copies"]
    if done.remains:
        lines.append("not erased, if they hold it:")
    return [*lines, *("  " + sanitize_line(one.message) for one in done.remains)]
