"""Exports a conversation as Markdown, JSON, JSON lines or one HTML page.

The file is written piece by piece; `nplt export` and `/export` share this code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from nplt_client.render.answers import joined
from nplt_client.render.reports import format_time, remarks_on
from nplt_client.render.text import attachment_words, dump_json, objects_in
from nplt_protocol.json_text import JsonObject, JsonValue
from nplt_protocol.messages import HistoryPage

Form: TypeAlias = Literal["md", "json", "jsonl", "html"]
FORMS: tuple[Form, ...] = get_args(Form)


def form_of(file: Path) -> Form | None:
    """Returns the format for the file's extension; `None` for an unknown one, or none."""
    ending = file.suffix.lower().removeprefix(".")
    return next((form for form in FORMS if form == ending), None)


def exported(
    form: Form, name: str, session_id: str, messages: Iterable[JsonObject]
) -> Iterator[str]:
    match form:
        case "md":
            return _markdown(name, joined(messages))
        case "json":
            return _json(name, session_id, messages)
        case "jsonl":
            return (dump_json(message) + "\n" for message in messages)
        case "html":
            from nplt_client.render.html_page import page

            return page(name, session_id, joined(messages))


def _markdown(name: str, messages: Iterable[JsonObject]) -> Iterator[str]:
    yield f"# {' '.join(name.split())}\n"
    for message in messages:
        words = [str(message.get("role")), format_time(str(message.get("timestamp")))]
        words += [str(message[extra]) for extra in ("model", "state") if message.get(extra)]
        words += [f"rejected: {message['rejected']}"] if message.get("rejected") else []
        words += remarks_on(message)
        yield f"\n## {' · '.join(word for word in words if word != 'completed')}\n"
        for attached in objects_in(message.get("attachments")):
            yield f"\n*{attachment_words(attached)}*\n"
        for call in objects_in(message.get("tool_calls")):
            result = " ".join(str(call.get("result") or "").split())
            yield f"\n> `{call.get('tool_name')}` {call.get('status')}: {result}\n"
        if message.get("content"):
            yield f"\n{message['content']}\n"


def _json(name: str, session_id: str, messages: Iterable[JsonObject]) -> Iterator[str]:
    """Writes the shape that `nplt import` and older programs read."""
    head = dump_json({"session_id": session_id, "name": name})
    yield f'{head[:-1]},"messages":['
    for number, message in enumerate(messages):
        yield ("," if number else "") + "\n" + dump_json(message)
    yield "\n]}\n"


def with_content(message: JsonObject, content: str) -> JsonObject:
    """Returns a truncated message with all of its text."""
    kept = {name: message[name] for name in message if name not in ("truncated", "size")}
    return {**kept, "content": content}


class ConversationWalk:
    """Decides which page of a conversation to read next, from its beginning.

    Prompts that wait for the running answer are missing from the pages `after` a seq; the
    newest page has them, so it is read last.
    """

    def __init__(self) -> None:
        self.is_over = False
        self.after: int | None = 0
        """The seq after which the next page begins; `None`: read the newest page."""
        self._known: set[int] = {0}
        self._last_seq: JsonValue = None

    def take(self, page: HistoryPage) -> Sequence[JsonObject]:
        """Returns the messages of the page that no earlier page had."""
        if self.after is None:
            self.is_over = True
            seqs = [message.get("seq") for message in page.messages]
            if self._last_seq is None:
                return page.messages
            is_here = self._last_seq in seqs
            return page.messages[seqs.index(self._last_seq) + 1 :] if is_here else ()
        if page.messages:
            self._last_seq = page.messages[-1].get("seq")
        goes_on = page.page.has_more_after and page.page.after not in self._known
        self.after = page.page.after if goes_on else None
        self._known.add(page.page.after)
        return page.messages
