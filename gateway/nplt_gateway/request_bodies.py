"""The bodies of requests for answers, in both of OpenAI's APIs, as plain values.

What the server can't do is refused with the name of the field. Fields that only steer caches,
billing or style (`user`, `service_tier`, `prompt_cache_key`, `verbosity` …) are ignored.
https://platform.openai.com/docs/api-reference/chat/create
https://platform.openai.com/docs/api-reference/responses/create
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias, TypeVar

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
    sealed_reasoning,
)
from nplt_gateway.errors import ApiError
from nplt_protocol import JsonObject, JsonValue
from nplt_server.tools import ToolDescription

_MESSAGES_MAX: Final = 10_000
_TOOLS_MAX: Final = 256

_PartT = TypeVar("_PartT")


def refused(param: str, why: str) -> ApiError:
    return ApiError(400, f"{param}: {why}", code="unsupported_value", param=param)


class Shape(BaseModel):
    """The base of the shapes of request bodies. Unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class PromptBody(Shape):
    """The fields that both APIs have, by the same names."""

    NOT_SERVED: ClassVar[tuple[str, ...]] = ()
    """Fields that are refused, except for values that ask for what is done anyway."""

    model: str | None = None
    stream: bool | None = None
    store: bool | None = None
    metadata: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None

    def check(self) -> None:
        """Raises `ApiError` for a field that asks for what the server does not do."""
        for name in self.NOT_SERVED:
            if getattr(self, name):
                instead = "; use tools" if name.startswith("function") else ""
                raise refused(name, f"this server does not have it{instead}")

    @property
    def is_bound(self) -> bool:
        """Whether it continues a conversation by the API's own fields."""
        return False

    @property
    def options(self) -> JsonObject:
        """The options of the prompt."""
        options: dict[str, JsonValue] = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "tool_choice": self._chosen_tool,
            "parallel_tool_calls": False if self.parallel_tool_calls is False else None,
            **self._own_options,
        }
        return {name: value for name, value in options.items() if value is not None}

    @property
    def _own_options(self) -> JsonObject:
        raise NotImplementedError

    @property
    def _chosen_tool(self) -> JsonValue:
        """`none`, `required`, or the name of a tool in an object; `None` is `auto`."""
        choice = self.tool_choice
        if isinstance(choice, dict):
            # One API has the name beside the type, the other in an object named after it.
            named = {**choice, **(choice.get("function") or {})}
            if choice.get("type") != "function" or not isinstance(named.get("name"), str):
                raise refused("tool_choice", "it names no function")
            return {"name": named["name"]}
        if choice not in (None, "auto", "none", "required"):
            raise refused("tool_choice", "it is auto, none, required or a function")
        return None if choice == "auto" else choice

    @property
    def client_tools(self) -> tuple[ToolDescription, ...]:
        """The tools that the client runs."""
        raise NotImplementedError

    @property
    def client_messages(self) -> list[ClientMessage]:
        raise NotImplementedError


AnswerFormat: TypeAlias = Literal["text", "json_object", "json_schema"]


def _schema_of(kind: AnswerFormat, schema: JsonObject | None, param: str) -> JsonObject | None:
    """The JSON schema that the answer must fit."""
    if kind == "json_schema" and schema is None:
        raise refused(param, "it is missing")
    match kind:
        case "text":
            return None
        case "json_object":
            return {"type": "object"}
        case "json_schema":
            return schema


def _described(
    name: str, description: str | None, parameters: JsonObject | None
) -> ToolDescription:
    return ToolDescription(
        name=name,
        description=description or "",
        parameters=parameters or {"type": "object", "properties": {}},
    )


def _texts_and_files(
    content: str | Sequence[_PartT] | None,
    param: str,
    read: Callable[[_PartT, str], str | ClientFile],
) -> tuple[str, tuple[ClientFile, ...]]:
    if content is None or isinstance(content, str):
        return content or "", ()
    found = [read(part, f"{param}.{place}") for place, part in enumerate(content)]
    texts = [each for each in found if isinstance(each, str)]
    return "\n\n".join(texts), tuple(each for each in found if isinstance(each, ClientFile))


# ------------------------------------------------------------------------------
# POST /v1/chat/completions


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


class CalledFunction(Shape):
    name: str
    arguments: str = ""


class ToolCall(Shape):
    id: str
    function: CalledFunction


class ChatMessage(Shape):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
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
    type: AnswerFormat
    json_schema: JsonSchemaFormat | None = None


class StreamOptions(Shape):
    include_usage: bool | None = None


class ChatBody(PromptBody):
    NOT_SERVED: ClassVar = (
        *("logprobs", "top_logprobs", "frequency_penalty", "presence_penalty", "logit_bias"),
        *("audio", "functions", "function_call", "web_search_options"),
    )

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=_MESSAGES_MAX)]
    stream_options: StreamOptions | None = None
    tools: Annotated[list[ChatTool], Field(max_length=_TOOLS_MAX)] | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: str | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    n: int | None = None
    logprobs: bool | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, Any] | None = None
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None
    functions: list[Any] | None = None
    function_call: str | dict[str, Any] | None = None
    web_search_options: dict[str, Any] | None = None

    def check(self) -> None:
        super().check()
        if self.n not in (None, 1):
            raise refused("n", "one answer is made for each request")
        if self.modalities and self.modalities != ["text"]:
            raise refused("modalities", "answers are text")

    @property
    def _own_options(self) -> JsonObject:
        wanted, schema = self.response_format, None
        if wanted is not None:
            named = wanted.json_schema.schema_ if wanted.json_schema else None
            schema = _schema_of(wanted.type, named, "response_format.json_schema.schema")
        return {
            "stop": [self.stop] if isinstance(self.stop, str) else [*(self.stop or ())] or None,
            "seed": self.seed,
            "effort": self.reasoning_effort,
            "output_tokens": self.max_completion_tokens or self.max_tokens,
            "schema": schema,
        }

    @property
    def client_tools(self) -> tuple[ToolDescription, ...]:
        functions = (tool.function for tool in self.tools or ())
        return tuple(_described(each.name, each.description, each.parameters) for each in functions)

    @property
    def client_messages(self) -> list[ClientMessage]:
        return [
            _chat_message(message, f"messages.{place}")
            for place, message in enumerate(self.messages)
        ]


def _chat_message(message: ChatMessage, param: str) -> ClientMessage:
    text, files = _texts_and_files(message.content, f"{param}.content", _chat_part)
    if files and message.role != "user":
        raise refused(f"{param}.content", "only messages of the user have files")
    match message.role:
        case "system" | "developer":
            return SystemText(text=text)
        case "user":
            return UserMessage(text=text, files=files)
        case "assistant":
            calls = tuple(
                ClientCall(
                    call_id=call.id, name=call.function.name, arguments=call.function.arguments
                )
                for call in message.tool_calls or ()
            )
            return AssistantMessage(text=text or message.refusal or "", calls=calls)
        case "tool":
            if not message.tool_call_id:
                raise refused(f"{param}.tool_call_id", "it is missing")
            return CallResult(call_id=message.tool_call_id, text=text)


def _chat_part(part: ContentPart, param: str) -> str | ClientFile:
    match part.type:
        case "text":
            return part.text or ""
        case "refusal":
            return part.refusal or ""
        case "image_url" if part.image_url is not None:
            return file_of_data_url(part.image_url.url, param=f"{param}.image_url")
        case "file" if part.file is not None and part.file.file_data is not None:
            where, name = f"{param}.file.file_data", part.file.filename or ""
            return file_of_data_url(part.file.file_data, param=where, name=name)
        case "file":
            raise refused(f"{param}.file", "send the file itself, in file_data")
        case _:
            raise refused(f"{param}.type", f"parts of type {part.type[:40]!r} are not accepted")


# ------------------------------------------------------------------------------
# POST /v1/responses


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
    encrypted_content: str | None = None


class ResponseTool(Shape):
    type: str
    name: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None


class TextFormat(Shape):
    type: AnswerFormat
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None


class TextOptions(Shape):
    format: TextFormat | None = None


class ReasoningOptions(Shape):
    effort: str | None = None


class ConversationReference(Shape):
    id: str


class ResponseBody(PromptBody):
    NOT_SERVED: ClassVar = ("top_logprobs", "max_tool_calls", "prompt")

    input: str | Annotated[list[InputItem], Field(max_length=_MESSAGES_MAX)] | None = None
    instructions: str | None = None
    background: bool | None = None
    conversation: str | ConversationReference | None = None
    previous_response_id: str | None = None
    tools: Annotated[list[ResponseTool], Field(max_length=_TOOLS_MAX)] | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    include: list[str] | None = None
    max_tool_calls: int | None = None
    prompt: dict[str, Any] | None = None

    def check(self) -> None:
        super().check()
        if self.conversation is not None and self.previous_response_id is not None:
            raise refused("previous_response_id", "it can't be combined with conversation")

    @property
    def is_bound(self) -> bool:
        return self.conversation is not None or self.previous_response_id is not None

    @property
    def wants_sealed_reasoning(self) -> bool:
        return "reasoning.encrypted_content" in (self.include or ())

    @property
    def conversation_id(self) -> str | None:
        named = self.conversation
        return named.id if isinstance(named, ConversationReference) else named

    @property
    def _own_options(self) -> JsonObject:
        wanted = self.text.format if self.text else None
        schema = _schema_of(wanted.type, wanted.schema_, "text.format.schema") if wanted else None
        return {
            "effort": self.reasoning.effort if self.reasoning else None,
            "output_tokens": self.max_output_tokens,
            "schema": schema,
            "cut": True if self.truncation == "auto" else None,
        }

    @property
    def client_tools(self) -> tuple[ToolDescription, ...]:
        """The functions among the tools. Tools of other kinds run at OpenAI, or need its models;
        Codex sends some with every request. They are not offered."""
        return tuple(
            _described(tool.name, tool.description, tool.parameters)
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
                yield _message_of_item(item, param)
            case "function_call" if item.call_id and item.name:
                call = ClientCall(
                    call_id=item.call_id, name=item.name, arguments=item.arguments or ""
                )
                yield AssistantMessage(calls=(call,))
            case "function_call_output" if item.call_id:
                text, files = _texts_and_files(item.output, f"{param}.output", _input_part)
                yield CallResult(call_id=item.call_id, text=text, files=files)
            case "item_reference":
                yield AssistantMessage(is_reference=True)
            case "reasoning" if item.encrypted_content:
                yield AssistantMessage(sealed=sealed_reasoning(item.encrypted_content))
            case "reasoning" | "mcp_call":
                pass  # the record has it
            case _:
                what = f"items of type {item.type[:40]!r} are not accepted, or lack a field"
                raise refused(f"{param}.type", what)


def _message_of_item(item: InputItem, param: str) -> ClientMessage:
    text, files = _texts_and_files(item.content, f"{param}.content", _input_part)
    match item.role:
        case "user":
            return UserMessage(text=text, files=files)
        case "assistant":
            return AssistantMessage(text=text)
        case _:
            return SystemText(text=text)


def _input_part(part: InputPart, param: str) -> str | ClientFile:
    match part.type:
        case "input_text" | "output_text" | "text":
            return part.text or ""
        case "refusal":
            return part.refusal or ""
        case "input_image" if part.image_url is not None:
            return file_of_data_url(part.image_url, param=f"{param}.image_url")
        case "input_file" if part.file_data is not None:
            where, name = f"{param}.file_data", part.filename or ""
            return file_of_data_url(part.file_data, param=where, name=name)
        case "input_file" | "input_image":
            raise refused(param, "send the file itself, as a data: URL")
        case _:
            raise refused(f"{param}.type", f"parts of type {part.type[:40]!r} are not accepted")
