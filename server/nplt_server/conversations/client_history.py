"""Compares the list of messages that a client sends with the conversation in the record.

Clients of OpenAI's API send the whole conversation with each request. `compared` finds what is new
in such a list, and where the list leaves the record:

    the list                                          what follows
    ------------------------------------------------  -----------------------------------------
    has no answer of a model in it                    all of it is new
    extends the record                                what comes after the record is new
    differs at a prompt, and every turn from there    these turns are rolled back, and the rest
    on came from this client                          of the list is new
    differs otherwise                                 the rest is new in a fork

A turn that came from elsewhere (a terminal, another client) may be missing in the list, because the
client never received it. If an answer in the record is not whole, the list may have any beginning
of it. Texts are compared without the white space around them. Files are not compared.

These are functions over the entries; `Conversation` acts on what they return, before it gives up
the write lock under which it called them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_protocol.messages import GivenMessage, ToolResult
from nplt_server.providers.accumulator import parse_tool_call
from nplt_storage.entries import (
    LIVE_SCREEN,
    Entry,
    LevelOfDetailSections,
    ModelInputEntry,
    ModelOutputEntry,
    ToolCallRequest,
    ToolExecutionStatus,
    ToolResultsEntry,
)

_NO_TEXT: Final = "(no text)"
"""The content stored for a prompt without text: it has only files, or was not in the list before
its answer."""


class Difference(Struct, frozen=True, kw_only=True):
    """The part of a list of messages that the record does not have."""

    new: Sequence[GivenMessage]
    replace_from: int | None = None
    """The prompt from which on the record is rolled back."""
    fork_at: int | None = None
    """The last entry that list and record share, if the rest belongs in a fork; 0: none."""
    results_seq: int | None = None
    """The stored results to answer again, if the list has nothing new."""


class _KnownTurn(Struct, kw_only=True):
    """A turn of the record, as its client received it: prompts, one answer, and the results that
    the client brought."""

    prompt: ModelInputEntry
    prompts: list[str]
    texts: list[str] = field(default_factory=list)
    calls: tuple[ToolCallRequest, ...] = ()
    statuses: dict[str, ToolExecutionStatus] = field(default_factory=dict)
    """The status of the result of each call, as far as there are results."""
    output_seq: int = 0
    is_whole: bool = False

    @property
    def answer(self) -> str:
        return "\n\n".join(self.texts)

    @property
    def has_answer(self) -> bool:
        return bool(self.texts or self.calls)


def compared(
    messages: Sequence[GivenMessage], entries: Iterable[Entry], *, client: str | None
) -> Difference:
    """`entries`: the active entries. `client`: the name of the client that sends the list."""
    given = _joined_answers(messages)
    if all(message.role != "assistant" for message in given):
        return Difference(new=given)
    turns, at, last = _turns(entries), 0, None
    for place, turn in enumerate(turns):
        began, after = at, _after_turn(turn, given, at)
        if after is not None:
            at, last = after, (place, began)
            known = _after_results(turn, given, at)
            if known is None:  # the record says that these calls were not run
                return Difference(new=given[at:], fork_at=turn.output_seq)
            at = known
        elif _is_from(turn, client):
            return _parting(turns[place:], given, at, client)
    if at < len(given):
        return Difference(new=given[at:])
    if given[-1].role == "assistant" or last is None:
        return Difference(new=())
    # The last turn has no answer, or not all of one: it is made again.
    place, began = last
    return _parting(turns[place:], given, began, client)


def _parting(
    turns: Sequence[_KnownTurn], given: Sequence[GivenMessage], at: int, client: str | None
) -> Difference:
    """The list leaves the record at the first of these turns, which begins at `at`."""
    first = turns[0]
    through = at + len(first.prompts)
    is_same_prompt = _begins_with(given[at:], first.prompts)
    has_other_answer = is_same_prompt and through < len(given)
    new = given[at:]
    if has_other_answer or not all(_is_from(turn, client) for turn in turns):
        return Difference(new=new, fork_at=first.prompt.seq - 1)
    results_seq = None if new else first.prompt.results_seq
    return Difference(new=new, replace_from=first.prompt.seq, results_seq=results_seq)


def _after_turn(turn: _KnownTurn, given: Sequence[GivenMessage], at: int) -> int | None:
    """The place in the list after the answer of this turn, or `None` if the turn is not there."""
    if not _begins_with(given[at:], turn.prompts):
        return None
    at += len(turn.prompts)
    answer = given[at] if at < len(given) and given[at].role == "assistant" else None
    if not turn.has_answer:
        return at if answer is None else None
    if answer is None:
        return None if turn.is_whole else at
    text = answer.content.strip()
    is_same = text == turn.answer.strip()
    if not is_same and (turn.is_whole or not turn.answer.strip().startswith(text)):
        return None
    is_called = [call.id for call in answer.tool_calls]
    return at + 1 if is_called == [call.tool_call_id for call in turn.calls] else None


def _after_results(turn: _KnownTurn, given: Sequence[GivenMessage], at: int) -> int | None:
    """The place after the results that the record has; `None` if it says that the client did not
    run them."""
    while at < len(given) and given[at].role == "tool":
        status = turn.statuses.get(given[at].tool_call_id or "", "pending")
        if status == "pending":
            return at
        if status == "skipped":
            return None
        at += 1
    return at


def _begins_with(given: Sequence[GivenMessage], prompts: Sequence[str]) -> bool:
    return len(given) >= len(prompts) and all(map(_same, given, prompts))


def _same(message: GivenMessage, text: str) -> bool:
    return message.role == "user" and message.content.strip() == text.strip()


def _is_from(turn: _KnownTurn, client: str | None) -> bool:
    return turn.prompt.door == "http" and turn.prompt.client == client


def _turns(entries: Iterable[Entry]) -> list[_KnownTurn]:
    turns: dict[str | None, _KnownTurn] = {}
    for entry in entries:
        match entry:
            case ModelInputEntry():
                turns[entry.turn_id] = _KnownTurn(prompt=entry, prompts=prompt_texts(entry))
            case ModelOutputEntry() if (turn := turns.get(entry.turn_id)) is not None:
                if entry.content.strip() and not entry.rejected:
                    turn.texts.append(entry.content)
                turn.calls = tuple(call for call in entry.tool_calls if call.by_client)
                turn.output_seq, turn.is_whole = entry.seq, entry.state == "completed"
            case ToolResultsEntry() if (turn := turns.get(entry.turn_id)) is not None:
                turn.statuses = {each.tool_call_id: each.status for each in entry.results}
            case _:
                pass
    return list(turns.values())


def prompt_texts(prompt: ModelInputEntry) -> list[str]:
    """The texts of the messages that became one prompt."""
    if prompt.sections is not None:
        texts = [section[1] for section in prompt.sections.live if section[0] != LIVE_SCREEN]
        if len(texts) > 1:
            return texts
    if prompt.content == _NO_TEXT:
        return [""] if prompt.attachments else []
    return [prompt.content] if prompt.content.strip() else []


def _joined_answers(messages: Sequence[GivenMessage]) -> list[GivenMessage]:
    """The list with answers that follow each other as one, and without empty ones: some clients
    send the text and each call of an answer by itself."""
    joined: list[GivenMessage] = []
    for message in messages:
        is_answer = message.role == "assistant"
        is_empty = not (message.content.strip() or message.tool_calls or message.attachments)
        if is_empty and message.role != "tool":
            continue
        if is_answer and joined and joined[-1].role == "assistant":
            last = joined.pop()
            texts = [text for text in (last.content, message.content) if text.strip()]
            message = GivenMessage(
                role="assistant",
                content="\n\n".join(texts),
                tool_calls=(*last.tool_calls, *message.tool_calls),
            )
        joined.append(message)
    return joined


# Entries of the messages that are new


class GivenTurn(Struct, frozen=True, kw_only=True):
    """A turn that the client had elsewhere."""

    prompt: ModelInputEntry
    output: ModelOutputEntry
    results: tuple[ToolResult, ...]


def given_turns(
    given: Sequence[GivenMessage], draft: ModelInputEntry, new_turn_id: Callable[[], str]
) -> Iterator[GivenTurn]:
    """The turns in a list that ends with an answer, as drafts. `draft`: the prompt that follows."""
    inputs: list[GivenMessage] = []
    answer: GivenMessage | None = None
    results: list[ToolResult] = []
    for message in (*given, None):
        if answer is not None and (message is None or message.role != "tool"):
            yield _given_turn(inputs, answer, results, draft, new_turn_id())
            inputs, answer, results = [], None, []
        match message:
            case GivenMessage(role="assistant"):
                answer = message
            case GivenMessage(role="tool") if answer is not None:
                called = {call.id for call in answer.tool_calls}
                results += (one for one in _results([message]) if one.tool_call_id in called)
            case GivenMessage(role="user"):
                inputs.append(message)
            case _:
                pass


def _given_turn(
    inputs: Sequence[GivenMessage],
    answer: GivenMessage,
    results: Sequence[ToolResult],
    draft: ModelInputEntry,
    turn_id: str,
) -> GivenTurn:
    prompt = ModelInputEntry(turn_id=turn_id, content="", door=draft.door, client=draft.client)
    prompt = _with_texts(prompt, inputs)
    if not prompt.content:
        prompt = replace(prompt, content=_NO_TEXT)
    calls = tuple(
        replace(parse_tool_call(call.id, call.name, call.arguments), by_client=True)
        for call in answer.tool_calls
    )
    output = ModelOutputEntry(
        turn_id=turn_id,
        content=answer.content,
        tool_calls=calls,
        stop_reason="tool_calls" if calls else "end",
        metadata={"given_by_client": True},
    )
    return GivenTurn(prompt=prompt, output=output, results=tuple(results))


def with_messages(
    draft: ModelInputEntry, messages: Sequence[GivenMessage]
) -> tuple[ModelInputEntry, tuple[ToolResult, ...]]:
    """The prompt with the texts and files of these messages, and the tool results among them. The
    texts of several messages are sections of one prompt."""
    drafted, results = _with_texts(draft, messages), _results(messages)
    if not drafted.content and not results and draft.results_seq is None:
        raise RequestError(
            ErrorCode.CONFLICT,
            "there is nothing to answer in these messages: the record has them all",
            field="messages",
        )
    return drafted, results


def _with_texts(draft: ModelInputEntry, messages: Sequence[GivenMessage]) -> ModelInputEntry:
    users = [message for message in messages if message.role == "user"]
    texts = [message.content for message in users if message.content.strip()]
    files = tuple(file for message in users for file in message.attachments)
    content = "\n\n".join(texts) or (_NO_TEXT if files else "")
    sections = None
    if len(texts) > 1:
        sections = LevelOfDetailSections(live=tuple(("", text) for text in texts))
    return replace(draft, content=content, sections=sections, attachments=files)


def _results(messages: Sequence[GivenMessage]) -> tuple[ToolResult, ...]:
    return tuple(
        ToolResult(tool_call_id=message.tool_call_id, result=message.content)
        for message in messages
        if message.role == "tool" and message.tool_call_id
    )
