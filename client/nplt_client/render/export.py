"""A conversation as a file: Markdown, JSON, JSON lines or one HTML page.

Written piece by piece, from messages in any number; `nplt export` and `/export` share it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from nplt_client.render.reports import format_time
from nplt_client.render.text import attachment_words, dump_json, objects_in
from nplt_protocol.json_text import JsonObject

Form: TypeAlias = Literal["md", "json", "jsonl", "html"]
FORMS: tuple[Form, ...] = get_args(Form)


def form_of(file: Path) -> Form | None:
    """By the file's ending; `None`: it has another one, or none."""
    ending = file.suffix.lower().removeprefix(".")
    return next((form for form in FORMS if form == ending), None)


def exported(
    form: Form, name: str, session_id: str, messages: Iterable[JsonObject]
) -> Iterator[str]:
    match form:
        case "md":
            return _markdown(name, messages)
        case "json":
            return _json(name, session_id, messages)
        case "jsonl":
            return (dump_json(message) + "\n" for message in messages)
        case "html":
            from nplt_client.render.html_page import page

            return page(name, session_id, messages)


def _markdown(name: str, messages: Iterable[JsonObject]) -> Iterator[str]:
    yield f"# {' '.join(name.split())}\n"
    for message in messages:
        words = [str(message.get("role")), format_time(str(message.get("timestamp")))]
        words += [str(message[extra]) for extra in ("model", "state") if message.get(extra)]
        words += [f"rejected: {message['rejected']}"] if message.get("rejected") else []
        yield f"\n## {' · '.join(word for word in words if word != 'completed')}\n"
        for attached in objects_in(message.get("attachments")):
            yield f"\n*{attachment_words(attached)}*\n"
        for call in objects_in(message.get("tool_calls")):
            result = " ".join(str(call.get("result") or "").split())
            yield f"\n> `{call.get('tool_name')}` {call.get('status')}: {result}\n"
        if message.get("content"):
            yield f"\n{message['content']}\n"


def _json(name: str, session_id: str, messages: Iterable[JsonObject]) -> Iterator[str]:
    """In the shape `nplt import` and older programs read."""
    head = dump_json({"session_id": session_id, "name": name})
    yield f'{head[:-1]},"messages":['
    for number, message in enumerate(messages):
        yield ("," if number else "") + "\n" + dump_json(message)
    yield "\n]}\n"


def left_waiting(
    last_page: Sequence[JsonObject], newest_page: Sequence[JsonObject]
) -> Sequence[JsonObject]:
    """Prompts that wait for the running answer: reading on gives them only after it, and
    the newest page has them."""
    seqs = [message.get("seq") for message in newest_page]
    if not last_page:
        return newest_page
    last = last_page[-1].get("seq")
    return newest_page[seqs.index(last) + 1 :] if last in seqs else ()
