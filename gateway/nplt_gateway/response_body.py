"""The body of `POST /v1/responses`, and its input as plain values.

What the server can't do is refused with the name of the field, as for chat completions.
https://platform.openai.com/docs/api-reference/responses/create
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from nplt_gateway.chat_body import Shape, refused
from nplt_gateway.client_messages import (
    AssistantMessage,
    CallResult,
    ClientCall,
    ClientFile,
    ClientMessage,
    SystemText,
    UserMessage,
    file_of_data_url,
)
from nplt_protocol import JsonObject, JsonValue
from nplt_server.tools import ToolDescription

_ITEMS_MAX: Final = 10_000
_TOOLS_MAX: Final = 256


class InputPart(Shape):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    file_data: str | None = None
    file_url: str | None = None
    file_id: str | None = None
    filename: str | None = None


class InputItem(Shape):
    type: str = "message"
    id: str | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[InputPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: str | list[InputPart] | None = None


class ResponseTool(Shape):
    type: str
    name: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None


class TextFormat(Shape):
    type: Literal["text", "json_object", "json_schema"]
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None


class TextOptions(Shape):
    format: TextFormat | None = None


class ReasoningOptions(Shape):
    effort: str | None = None


class ConversationReference(Shape):
    id: str


class ResponseBody(Shape):
    input: str | Annotated[list[InputItem], Field(max_length=_ITEMS_MAX)] | None = None
    model: str | None = None
    instructions: str | None = None
    stream: bool | None = None
    store: bool | None = None
    background: bool | None = None
    conversation: str | ConversationReference | None = None
    previous_response_id: str | None = None
    metadata: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    tools: Annotated[list[ResponseTool], Field(max_length=_TOOLS_MAX)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    # Refused, except for values that ask for what is done anyway.
    top_logprobs: int | None = None
    max_tool_calls: int | None = None
    prompt: dict[str, Any] | None = None

    def check(self) -> None:
        """Raises `ApiError` for a field that asks for what the server does not do."""
        for name in ("top_logprobs", "max_tool_calls", "prompt"):
            if getattr(self, name):
                raise refused(name, "this server does not have it")
        if self.conversation is not None and self.previous_response_id is not None:
            raise refused("previous_response_id", "it can't be combined with conversation")

    @property
    def conversation_id(self) -> str | None:
        named = self.conversation
        return named.id if isinstance(named, ConversationReference) else named

    @property
    def options(self) -> JsonObject:
        """The options of the prompt."""
        options: dict[str, JsonValue] = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "effort": self.reasoning.effort if self.reasoning else None,
            "output_tokens": self.max_output_tokens,
            "schema": self._schema,
            "tool_choice": self._tool_choice,
            "parallel_tool_calls": False if self.parallel_tool_calls is False else None,
            "cut": True if self.truncation == "auto" else None,
        }
        return {name: value for name, value in options.items() if value is not None}

    @property
    def _schema(self) -> JsonObject | None:
        wanted = self.text.format if self.text else None
        if wanted is None or wanted.type == "text":
            return None
        if wanted.type == "json_object":
            return {"type": "object"}
        if wanted.schema_ is None:
            raise refused("text.format.schema", "it is missing")
        return wanted.schema_

    @property
    def _tool_choice(self) -> JsonValue:
        """`auto`, `none`, `required`, or the name of a tool in an object."""
        choice = self.tool_choice
        if isinstance(choice, dict):
            if choice.get("type") != "function" or not isinstance(choice.get("name"), str):
                raise refused("tool_choice", "it names no function")
            return {"name": choice["name"]}
        if choice not in (None, "auto", "none", "required"):
            raise refused("tool_choice", "it is auto, none, required or a function")
        return None if choice == "auto" else choice

    @property
    def client_tools(self) -> tuple[ToolDescription, ...]:
        """The functions among the tools. Tools of other kinds run at OpenAI, or need its models;
        Codex sends some with every request. They are not offered."""
        return tuple(
            ToolDescription(
                name=tool.name,
                description=tool.description or "",
                parameters=tool.parameters or {"type": "object", "properties": {}},
            )
            for tool in self.tools or ()
            if tool.type == "function" and tool.name is not None
        )

    @property
    def client_messages(self) -> list[ClientMessage]:
        before = [SystemText(text=self.instructions)] if self.instructions else []
        if isinstance(self.input, str):
            return [*before, UserMessage(text=self.input)]
        return [*before, *read_items(self.input or (), "input")]


def read_items(items: Sequence[InputItem], field: str) -> Iterator[ClientMessage]:
    for place, item in enumerate(items):
        param = f"{field}.{place}"
        match item.type:
            case "message" if item.role is not None:
                yield _message(item, param)
            case "function_call" if item.call_id and item.name:
                call = ClientCall(
                    call_id=item.call_id, name=item.name, arguments=item.arguments or ""
                )
                yield AssistantMessage(calls=(call,))
            case "function_call_output" if item.call_id:
                text, files = _content_of(item.output, f"{param}.output")
                yield CallResult(call_id=item.call_id, text=text, files=files)
            case "item_reference":
                yield AssistantMessage(is_reference=True)
            case "reasoning" | "mcp_call":
                pass  # the record has it
            case _:
                what = f"items of type {item.type[:40]!r} are not accepted, or lack a field"
                raise refused(f"{param}.type", what)


def _message(item: InputItem, param: str) -> ClientMessage:
    text, files = _content_of(item.content, f"{param}.content")
    match item.role:
        case "user":
            return UserMessage(text=text, files=files)
        case "assistant":
            return AssistantMessage(text=text)
        case _:
            return SystemText(text=text)


def _content_of(
    content: str | list[InputPart] | None, param: str
) -> tuple[str, tuple[ClientFile, ...]]:
    if content is None or isinstance(content, str):
        return content or "", ()
    texts: list[str] = []
    files: list[ClientFile] = []
    for place, part in enumerate(content):
        here = f"{param}.{place}"
        match part.type:
            case "input_text" | "output_text" | "text":
                texts.append(part.text or "")
            case "refusal":
                texts.append(part.refusal or "")
            case "input_image" if part.image_url is not None:
                files.append(file_of_data_url(part.image_url, param=f"{here}.image_url"))
            case "input_file" if part.file_data is not None:
                where, name = f"{here}.file_data", part.filename or ""
                files.append(file_of_data_url(part.file_data, param=where, name=name))
            case "input_file" | "input_image":
                raise refused(here, "send the file itself, as a data: URL")
            case _:
                raise refused(f"{here}.type", f"parts of type {part.type[:40]!r} are not accepted")
    return "\n\n".join(texts), tuple(files)
