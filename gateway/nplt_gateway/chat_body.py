"""The body of `POST /v1/chat/completions`, and its messages as plain values.

What the server can't do is refused with the name of the field. Fields that only steer caches,
billing or style (`user`, `service_tier`, `prompt_cache_key`, `verbosity` …) are ignored.
https://platform.openai.com/docs/api-reference/chat/create
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

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
from nplt_gateway.errors import ApiError
from nplt_protocol import JsonObject, JsonValue
from nplt_server.tools import ToolDescription

_MESSAGES_MAX: Final = 10_000
_TOOLS_MAX: Final = 256


class Shape(BaseModel):
    """The base of the shapes of request bodies. Unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class ImageUrl(Shape):
    url: str


class FileContent(Shape):
    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


class ContentPart(Shape):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: ImageUrl | None = None
    file: FileContent | None = None


Content: TypeAlias = str | list[ContentPart] | None


class CalledFunction(Shape):
    name: str
    arguments: str = ""


class ToolCall(Shape):
    id: str
    function: CalledFunction


class ChatMessage(Shape):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


class FunctionShape(Shape):
    name: Annotated[str, Field(min_length=1, max_length=200)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ChatTool(Shape):
    type: Literal["function"]
    function: FunctionShape


class JsonSchemaFormat(Shape):
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None


class ResponseFormat(Shape):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StreamOptions(Shape):
    include_usage: bool | None = None


class ChatBody(Shape):
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=_MESSAGES_MAX)]
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    store: bool | None = None
    metadata: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    tools: Annotated[list[ChatTool], Field(max_length=_TOOLS_MAX)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    # Refused, except for values that ask for what is done anyway.
    n: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, Any] | None = None
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None
    functions: list[Any] | None = None
    function_call: str | dict[str, Any] | None = None
    web_search_options: dict[str, Any] | None = None

    def check(self) -> None:
        """Raises `ApiError` for a field that asks for what the server does not do."""
        if self.n not in (None, 1):
            raise refused("n", "one answer is made for each request")
        for name in ("logprobs", "top_logprobs", "frequency_penalty", "presence_penalty"):
            if getattr(self, name):
                raise refused(name, "this server does not have it")
        for name in ("logit_bias", "audio", "functions", "function_call", "web_search_options"):
            if getattr(self, name):
                instead = "; use tools" if name.startswith("function") else ""
                raise refused(name, f"this server does not have it{instead}")
        if self.modalities and self.modalities != ["text"]:
            raise refused("modalities", "answers are text")

    @property
    def options(self) -> JsonObject:
        """The options of the prompt."""
        options: dict[str, JsonValue] = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "stop": [self.stop] if isinstance(self.stop, str) else [*(self.stop or ())] or None,
            "seed": self.seed,
            "effort": self.reasoning_effort,
            "output_tokens": self.max_completion_tokens or self.max_tokens,
            "schema": self._schema,
            "tool_choice": self._tool_choice,
            "parallel_tool_calls": False if self.parallel_tool_calls is False else None,
        }
        return {name: value for name, value in options.items() if value is not None}

    @property
    def _schema(self) -> JsonObject | None:
        if self.response_format is None or self.response_format.type == "text":
            return None
        if self.response_format.type == "json_object":
            return {"type": "object"}
        named = self.response_format.json_schema
        if named is None or named.schema_ is None:
            raise refused("response_format.json_schema.schema", "it is missing")
        return named.schema_

    @property
    def _tool_choice(self) -> JsonValue:
        """`auto`, `none`, `required`, or the name of a tool in an object."""
        choice = self.tool_choice
        if isinstance(choice, dict):
            name = choice.get("function", {}).get("name")
            if choice.get("type") != "function" or not isinstance(name, str):
                raise refused("tool_choice", "it names no function")
            return {"name": name}
        if choice not in (None, "auto", "none", "required"):
            raise refused("tool_choice", "it is auto, none, required or a function")
        return None if choice == "auto" else choice

    @property
    def client_tools(self) -> tuple[ToolDescription, ...]:
        return tuple(
            ToolDescription(
                name=tool.function.name,
                description=tool.function.description or "",
                parameters=tool.function.parameters or {"type": "object", "properties": {}},
            )
            for tool in self.tools or ()
        )

    @property
    def client_messages(self) -> list[ClientMessage]:
        return list(_read(self.messages))


def refused(param: str, why: str) -> ApiError:
    return ApiError(400, f"{param}: {why}", code="unsupported_value", param=param)


def _read(messages: Sequence[ChatMessage]) -> Iterator[ClientMessage]:
    for place, message in enumerate(messages):
        param = f"messages.{place}"
        text, files = _content(message.content, f"{param}.content")
        if files and message.role != "user":
            raise refused(f"{param}.content", "only messages of the user have files")
        match message.role:
            case "system" | "developer":
                yield SystemText(text=text)
            case "user":
                yield UserMessage(text=text, files=files)
            case "assistant":
                calls = tuple(
                    ClientCall(
                        call_id=call.id,
                        name=call.function.name,
                        arguments=call.function.arguments,
                    )
                    for call in message.tool_calls or ()
                )
                yield AssistantMessage(text=text or message.refusal or "", calls=calls)
            case "tool":
                if not message.tool_call_id:
                    raise refused(f"{param}.tool_call_id", "it is missing")
                yield CallResult(call_id=message.tool_call_id, text=text)


def _content(content: Content, param: str) -> tuple[str, tuple[ClientFile, ...]]:
    if content is None or isinstance(content, str):
        return content or "", ()
    texts: list[str] = []
    files: list[ClientFile] = []
    for place, part in enumerate(content):
        here = f"{param}.{place}"
        match part.type:
            case "text":
                texts.append(part.text or "")
            case "refusal":
                texts.append(part.refusal or "")
            case "image_url" if part.image_url is not None:
                where = f"{here}.image_url"
                files.append(file_of_data_url(part.image_url.url, param=where))
            case "file" if part.file is not None and part.file.file_data is not None:
                where, name = f"{here}.file.file_data", part.file.filename or ""
                files.append(file_of_data_url(part.file.file_data, param=where, name=name))
            case "file":
                raise refused(f"{here}.file", "send the file itself, in file_data")
            case _:
                raise refused(f"{here}.type", f"parts of type {part.type[:40]!r} are not accepted")
    return "\n\n".join(texts), tuple(files)
