"""The messages of a client's request, whichever API they came by.

Clients of OpenAI's APIs send the whole conversation with each request. Here it is a list of plain
values; `chat_completions` and `responses` read their own forms into it.
"""

from __future__ import annotations

import base64
import binascii
import mimetypes
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Final, TypeAlias
from urllib.parse import unquote_to_bytes

import orjson
from msgspec import Struct, ValidationError, convert, structs, to_builtins

from nplt_gateway.errors import ApiError
from nplt_server.context.messages import (
    ContextAttachment,
    ContextMessage,
    ModelInputMessage,
    ModelOutputMessage,
    SystemMessage,
    ToolResultsMessage,
)
from nplt_server.providers import ModelFacts
from nplt_server.providers.accumulator import parse_tool_call
from nplt_storage.entries import (
    UNSTAMPED,
    ModelInvocationDescriptor,
    OutputPart,
    ToolCallResult,
)

_DATA_URL: Final = re.compile(r"data:([\w.+-]+/[\w.+-]+)?((?:;[\w.+-]+=[^;,]*)*)(;base64)?,", re.A)
_IMAGE_TYPES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")
_PDF: Final = "application/pdf"


class ClientFile(Struct, frozen=True, kw_only=True):
    name: str
    content_type: str
    data: bytes

    def __repr__(self) -> str:
        return f"ClientFile({self.name!r}, {self.content_type!r}, {len(self.data)} bytes)"


class SystemText(Struct, frozen=True, kw_only=True):
    text: str


class UserMessage(Struct, frozen=True, kw_only=True):
    text: str
    files: tuple[ClientFile, ...] = ()


class ClientCall(Struct, frozen=True, kw_only=True):
    call_id: str
    name: str
    arguments: str


class SealedReasoning(Struct, frozen=True, kw_only=True):
    """The part of a model's reasoning that only this model can read: the vendor's opaque parts, in
    their order among the parts of the answer. It is sent back to that model only. A client that
    keeps the conversation itself gets it as the `encrypted_content` of an item."""

    invocation: ModelInvocationDescriptor
    reasoning: str = ""
    parts: tuple[OutputPart, ...] = ()

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(orjson.dumps(to_builtins(self))).decode()


def sealed_reasoning(text: str) -> SealedReasoning | None:
    """Reads an `encrypted_content`; `None` if it is not of this server."""
    try:
        return convert(orjson.loads(base64.urlsafe_b64decode(text)), SealedReasoning)
    except (ValueError, ValidationError):
        return None


class AssistantMessage(Struct, frozen=True, kw_only=True):
    text: str = ""
    calls: tuple[ClientCall, ...] = ()
    is_reference: bool = False
    """Whether it only names an item of an earlier answer."""
    sealed: SealedReasoning | None = None

    @property
    def is_empty(self) -> bool:
        return not (self.text or self.calls or self.is_reference)


class CallResult(Struct, frozen=True, kw_only=True):
    call_id: str
    text: str
    files: tuple[ClientFile, ...] = ()


ClientMessage: TypeAlias = SystemText | UserMessage | AssistantMessage | CallResult


def system_text(messages: Sequence[ClientMessage]) -> str:
    """All system texts, in order, as one."""
    return "\n\n".join(each.text for each in messages if isinstance(each, SystemText) and each.text)


def new_messages(messages: Sequence[ClientMessage]) -> Sequence[ClientMessage]:
    """The messages after the last answer."""
    for place in range(len(messages) - 1, -1, -1):
        if isinstance(messages[place], AssistantMessage):
            return messages[place + 1 :]
    return messages


# Files


def file_of_data_url(url: str, *, param: str, name: str = "") -> ClientFile:
    """Reads a `data:` URL. An address elsewhere is refused: the server fetches nothing for others,
    because it may reach what they may not."""
    head = _DATA_URL.match(url)
    if head is None:
        raise ApiError(
            400,
            f"{param}: files are accepted as data: URLs only; this server fetches no addresses",
            code="invalid_value",
            param=param,
        )
    rest = url[head.end() :]
    try:
        data = base64.b64decode(rest, validate=True) if head[3] else unquote_to_bytes(rest)
    except (binascii.Error, ValueError):
        raise ApiError(
            400, f"{param}: the data is not base64", code="invalid_value", param=param
        ) from None
    content_type = (head[1] or "text/plain").lower()
    extension = mimetypes.guess_extension(content_type) or ""
    return ClientFile(name=name or f"file{extension}", content_type=content_type, data=data)


# As a context, for a call without a conversation


def context_of(
    messages: Sequence[ClientMessage], *, facts: ModelFacts, schema: str
) -> list[ContextMessage]:
    """The messages as a model is shown them. `schema` is the JSON schema of the answer, or
    empty. Raises `ApiError` if the model can't be shown one of their files."""
    context: list[ContextMessage] = []
    if instruction := system_text(messages):
        context.append(SystemMessage(instruction=instruction))
    context.extend(_turns(messages, facts))
    for place in range(len(context) - 1, -1, -1):
        message = context[place]
        if schema and isinstance(message, ModelInputMessage):
            context[place] = ModelInputMessage(
                content=message.content, attachments=message.attachments, schema=schema
            )
            break
    return context


def _turns(messages: Sequence[ClientMessage], facts: ModelFacts) -> Iterator[ContextMessage]:
    names: dict[str, str] = {}
    results: list[ToolCallResult] = []
    for message in _with_whole_answers(messages):
        if results and not isinstance(message, CallResult):
            yield ToolResultsMessage(results=tuple(results))
            results = []
        match message:
            case UserMessage(text=text, files=files):
                attachments = tuple(_attachment(file, facts) for file in files)
                yield ModelInputMessage(content=text, attachments=attachments)
            case AssistantMessage(text=text, calls=calls, sealed=sealed) if text or calls:
                names.update((call.call_id, call.name) for call in calls)
                yield ModelOutputMessage(
                    content=text,
                    tool_calls=tuple(
                        parse_tool_call(call.call_id, call.name, call.arguments) for call in calls
                    ),
                    invocation=sealed.invocation if sealed else None,
                    reasoning=sealed.reasoning if sealed else "",
                    parts=sealed.parts if sealed else (),
                )
            case CallResult(call_id=call_id, text=text):
                results.append(
                    ToolCallResult(
                        tool_name=names.get(call_id, "tool"),
                        tool_call_id=call_id,
                        result=text,
                        status="success",
                        duration=0,
                        timestamp=UNSTAMPED,
                    )
                )
            case SystemText() | AssistantMessage():
                pass
    if results:
        yield ToolResultsMessage(results=tuple(results))


def _with_whole_answers(messages: Sequence[ClientMessage]) -> Iterator[ClientMessage]:
    """Joins the items of each answer that has sealed reasoning, which covers all of them."""
    for is_answer, group in groupby(messages, lambda each: isinstance(each, AssistantMessage)):
        items = [*group]
        answers = [each for each in items if isinstance(each, AssistantMessage)]
        sealed = next((each.sealed for each in answers if each.sealed), None)
        if not is_answer or sealed is None:
            yield from items
            continue
        calls = tuple(call for each in answers for call in each.calls)
        text = "".join(each.text for each in answers)
        yield AssistantMessage(text=text, calls=calls, sealed=sealed)


def _attachment(file: ClientFile, facts: ModelFacts) -> ContextAttachment:
    shown = ContextAttachment(name=file.name, content_type=file.content_type)
    if file.content_type in _IMAGE_TYPES and facts.takes_images:
        return structs.replace(shown, data_base64=base64.b64encode(file.data).decode())
    if file.content_type == _PDF and facts.takes_pdfs:
        return structs.replace(shown, pdf_base64=base64.b64encode(file.data).decode())
    if not file.content_type.startswith("image/") and file.content_type != _PDF:
        with suppress(UnicodeDecodeError):
            return structs.replace(shown, text=file.data.decode())
    raise ApiError(
        400,
        f"this model can't be shown {file.name}, which is {file.content_type}",
        code="unsupported_file",
        param="messages",
    )
