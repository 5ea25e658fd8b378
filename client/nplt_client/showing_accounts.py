"""What a model is shown, what it used, which tools it has: as text for people.

Pure, and safe for a terminal, like `showing`. The rows of an account are plain
JSON, and a later server may say more in them: what is not understood is left
out or shown as it stands, never refused.
"""

from __future__ import annotations

from collections.abc import Iterator

from nplt_client.sanitize import sanitize_line
from nplt_client.tables import pairs, table
from nplt_protocol.json_values import JsonObject, JsonValue
from nplt_protocol.replies import ContextAccount, EpochBegun, ToolList, UsageAccount

_DESCRIPTION_WIDTH_MAX = 72

_WHY = {
    "head": "begins the epoch",
    "omitted": "no room",
    "compacted": "summed up",
    "window": "before the window",
    "later": "not its turn yet",
    "unpaired": "call without result",
    "abandoned": "left behind",
    "quarantined": "refused by a provider",
    "not_for_models": "not for models",
    "not_held": "too long ago",
    "mixed": "several reasons",
}
"""Short, for a column; other codes are good words by themselves."""

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


def context_text(account: ContextAccount) -> str:
    rows = table(
        ("ENTRY", "WHO", "DETAIL", "TOKENS", "WHY", "WHAT"),
        [
            (
                _place(row),
                _who(row),
                _word(row, "detail") or "-",
                f"{_number(row, 'tokens'):,}",
                _why(row),
                _first_words(row),
            )
            for row in account.entries
        ],
        numbers=("TOKENS",),
    )
    return f"{rows}\n{sanitize_line(' · '.join(_totals(account)))}"


def _place(row: JsonObject) -> str:
    seq, through = _number(row, "seq"), _number(row, "through_seq")
    if not seq:
        return "next" if row.get("kind") == "model_input" else "-"
    return f"{seq}-{through}" if through > seq else str(seq)


def _who(row: JsonObject) -> str:
    return _word(row, "role") or _word(row, "kind").replace("_", " ") or "several"


def _why(row: JsonObject) -> str:
    reason = _word(row, "reason")
    if reason in (_word(row, "detail"), _word(row, "role"), _word(row, "kind")):
        return ""
    return _WHY.get(reason) or reason.replace("_", " ")


def _first_words(row: JsonObject) -> str:
    """What was said; else what was called, or what came of it."""
    if told := _joined_rows(row):
        return told
    if said := _word(row, "content").strip():
        return said
    calls = (
        f"calls {_word(call, 'tool_name')} {_word(call, 'arguments')}"
        for call in _objects(row.get("tool_calls"))
    )
    results = (
        f"{_word(result, 'tool_name')}{_unless_success(result)}: {_word(result, 'result')}"
        for result in _objects(row.get("results"))
    )
    return "; ".join((*calls, *results))


def _joined_rows(row: JsonObject) -> str:
    """Of a run that is shown, and too long for the server to tell one by one."""
    count = _number(row, "through_seq") - _number(row, "seq") + 1
    return f"({count:,} entries)" if count > 1 and "detail" in row else ""


def _unless_success(result: JsonObject) -> str:
    status = _word(result, "status")
    return "" if status in ("", "success") else f" ({status})"


def _totals(account: ContextAccount) -> Iterator[str]:
    tokens, tools = _number(account.totals, "tokens"), _number(account.totals, "tools")
    yield account.model
    yield _share(tokens, account.budget_tokens)
    yield f"tools {tools:,}"
    if left_out := _number(account.totals, "left_out"):
        yield f"{left_out:,} left out"
    yield f"epoch of entry {account.epoch}" if account.epoch else "no epoch yet"
    if account.totals.get("trimmed"):
        yield "trimmed for this model's window"
    if reason := account.begins_epoch:
        yield f"a new epoch would begin: {_EPOCH_REASONS.get(reason, reason)}"


def tools_text(listed: ToolList) -> str:
    if not listed.tools:
        return "no tools"
    return table(
        ("NAME", "CLASS", "POLICY", "DESCRIPTION"),
        [
            (
                _word(tool, "name"),
                _word(tool, "class"),
                _word(tool, "policy"),
                _first_sentence(_word(tool, "description")),
            )
            for tool in listed.tools
        ],
        cell_width_max=_DESCRIPTION_WIDTH_MAX,
    )


def _first_sentence(text: str) -> str:
    first, stop, _ = sanitize_line(text).partition(". ")
    return first + stop.strip()


def usage_text(account: UsageAccount) -> str:
    return pairs(
        [
            ("model", account.model),
            ("billed", _billed(account.billed)),
            *_by_model(account.billed),
            ("occupancy", _occupancy(account.occupancy)),
            ("estimate", _estimate(account.estimate)),
            ("cost", _cost(account.cost)),
        ]
    )


def _billed(bill: JsonObject) -> str:
    cached, calls = _number(bill, "cached_tokens"), _number(bill, "calls")
    from_cache = f" ({cached:,} cached)" if cached else ""
    return (
        f"{_number(bill, 'input_tokens'):,} tokens in{from_cache}, "
        f"{_number(bill, 'output_tokens'):,} out, {calls:,} {'call' if calls == 1 else 'calls'}"
    )


def _by_model(billed: JsonObject) -> Iterator[tuple[str, str]]:
    """Only where there are several."""
    models = _objects(billed.get("models"))
    for bill in models if len(models) > 1 else ():
        yield f"  {sanitize_line(_word(bill, 'model'))}", _billed(bill)


def _occupancy(said: JsonObject) -> str:
    counted_by = {"api": "as the provider counts", "counted": "as the server counts"}
    source = counted_by.get(_word(said, "source"), "")
    share = _share(_number(said, "tokens"), _number(said, "context_tokens"))
    return ", ".join(filter(None, (f"{share} in the last call", source)))


def _estimate(said: JsonObject) -> str:
    counter = _word(said, "counter")
    return f"{_number(said, 'tokens'):,} tokens in the next" + (f" ({counter})" if counter else "")


def _cost(cost: JsonObject | None) -> str:
    if cost is None:
        return "no prices are configured"
    partly = " (some models have no price)" if cost.get("partial") else ""
    return f"{cost.get('amount')} {_word(cost, 'currency')}".rstrip() + partly


def epoch_text(begun: EpochBegun) -> str:
    """What a compaction came to."""
    said = f"compacted: {begun.tokens_before:,} tokens are now {begun.tokens_after:,}"
    if begun.compaction is not None:
        said += f", with a summary (entry {begun.compaction})"
    return said


def _share(tokens: int, of: int) -> str:
    if of <= 0:
        return f"{tokens:,} tokens"
    return f"{tokens:,} of {of:,} tokens ({100 * tokens / of:.1f} %)"


def _number(row: JsonObject, name: str) -> int:
    value = row.get(name)
    return value if isinstance(value, int) else 0


def _word(row: JsonObject, name: str) -> str:
    value = row.get(name)
    return value if isinstance(value, str) else ""


def _objects(value: JsonValue) -> list[JsonObject]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
