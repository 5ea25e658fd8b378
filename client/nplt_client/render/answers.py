"""Answers as views show them: in one piece, with who gave them and why they are not whole.

The same words in the chat, on stderr, in `nplt history` and in exports. They may hold what a
provider said: the caller sanitizes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nplt_protocol.json_text import JsonObject, JsonValue


def model_of(entry: JsonObject) -> str | None:
    """Returns the model that gave an answer, from its stored entry or message."""
    if isinstance(model := entry.get("model"), str):
        return model
    match entry.get("invocation"):
        case {"provider": str(provider), "model": str(model)}:
            return f"{provider}/{model}"
        case _:
            return None


def tokens_of_answer(message: JsonObject) -> int | None:
    """Returns how many tokens the answer has, from its stored entry or message."""
    match message.get("usage"):
        case {"output_tokens": int(tokens)} if tokens > 0:
            return tokens
        case _:
            return None


CAN_GO_ON = ("length", "window", "pause", "cancelled")
"""The stop reasons after which `/continue` is worth trying."""
_STOPS = {
    "length": "cut at the longest an answer may be",
    "window": "cut, because the model's window is full",
    "filter": "cut by the provider's content filter",
    "content_filter": "cut by the provider's content filter",  # as older servers stored it
    "refusal": "the model declined to say more",
    "pause": "the model paused before it was done",
}


def stop_words(reason: str | None, tokens: int | None = None) -> str:
    """Returns why an answer is not whole; empty if it is. `tokens`: its length."""
    if reason in (None, "", "end", "tool_calls", "cancelled"):
        return ""
    if reason == "length" and tokens is not None:
        return f"cut at {tokens:,} tokens"
    return _STOPS.get(reason, f"the provider stopped it ({reason})")


def fallback_words(
    model: str | None, fallback_from: JsonValue, *, has_answered: bool = True
) -> str:
    """Returns who answered instead of whom, and why; empty without a fallback."""
    match fallback_from:
        case {"model": str(wanted), "message": str(why)}:
            did = "answered" if has_answered else "was asked"
            return f"{model or 'another model'} {did} instead of {wanted}: {why}"
        case _:
            return ""


def hidden_words(message: JsonObject) -> str:
    """Returns from whose models the message is hidden; empty if from none."""
    hidden = message.get("hidden")
    return f"hidden from {hidden}" if isinstance(hidden, str) else ""


def is_silent(message: JsonObject) -> bool:
    """Whether it is a prompt without a text, which only brings tool results."""
    return message.get("results_seq") is not None and not message.get("content")


def joined(messages: Iterable[JsonObject]) -> Iterator[JsonObject]:
    """Joins an answer that was cut with the one that goes on with it, and leaves out the prompt
    between them. A part whose beginning is not among the messages stays as it is. Prompts that only
    bring tool results are left out too."""
    held: JsonObject | None = None
    held_seq: JsonValue = None
    goes_on: JsonValue = None
    """The turn whose answer goes on with the held one."""
    for message in messages:
        if is_silent(message):
            continue
        role, continued = message.get("role"), message.get("continues")
        is_rest = role == "assistant" and goes_on and message.get("turn_id") == goes_on
        if held is not None and role == "user" and continued and continued == held_seq:
            goes_on = message.get("turn_id")
        elif held is not None and is_rest:
            held, goes_on = _together(held, message), None
            if message.get("content"):  # else it was reasoning alone, and the first part goes on
                held_seq = message.get("seq")
        else:
            if held is not None:
                yield held
            held, held_seq, goes_on = message, message.get("seq"), None
    if held is not None:
        yield held


_OF_THE_FIRST = ("seq", "id", "turn_id")
_OF_BOTH = ("content", "reasoning")


def _together(first: JsonObject, rest: JsonObject) -> JsonObject:
    whole = dict(rest)
    for name in _OF_THE_FIRST:
        if name in first:
            whole[name] = first[name]
    for name in _OF_BOTH:
        texts = [text for text in (first.get(name), rest.get(name)) if isinstance(text, str)]
        if texts:
            whole[name] = "".join(texts)
    calls = (first.get("tool_calls"), rest.get("tool_calls"))
    whole["tool_calls"] = [one for some in calls if isinstance(some, list) for one in some]
    return whole
