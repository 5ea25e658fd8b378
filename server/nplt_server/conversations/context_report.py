"""Reports what a model would be shown, and what was used: CONTEXT_REQUEST and USAGE.

For each entry it says whether it is in the context, at which level, or why not. Adjacent entries
left out for the same reason share a row. The rows are JSON and fit one message: texts are cut
first, then rows are joined.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Final, Literal, TypeAlias, TypeVar

import orjson
from msgspec import Struct
from msgspec.structs import replace

from nplt_protocol.codec import to_object
from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_protocol.json_text import JsonObject, JsonValue
from nplt_protocol.messages import ContextAccount, UsageAccount
from nplt_server.context.messages import (
    ContextAttachment,
    ContextMessage,
    ContextRole,
    ModelInputMessage,
    ModelOutputMessage,
    ShownLevel,
    SystemMessage,
    ToolResultsMessage,
    file_ids_of,
)
from nplt_server.context.projection import Projection
from nplt_server.context.selection import ContextView, PromptReference
from nplt_server.context.steps import Measure, steps_of
from nplt_server.conversations.context_manager import ContextManager
from nplt_server.errors import WindowTooSmall
from nplt_server.usage import billed_series, occupancy_of
from nplt_storage.active_entries import is_in
from nplt_storage.entries import (
    Entry,
    FaultEntry,
    ModelInputEntry,
    ModelOutputEntry,
    SystemInstructionEntry,
    ToolResultsEntry,
)
from nplt_storage.history import ConversationHistory
from nplt_storage.messages import model_name
from nplt_storage.turns import Turn

# The rows: every entry, shown or not

OmissionReason: TypeAlias = Literal[
    "head",  # before all turns: a summary of older ones, the live screen
    "omitted",  # older than what there is room for
    "compacted",  # a summary stands for it
    "window",  # older than `max_turns` allows
    "cleared",  # a clear came after its turn
    "later",  # its turn was asked for after this one, or has not ended
    "unpaired",  # a call without its result (yet), the other way round, or blank
    "abandoned",  # its turn was left where the conversation went back or forked
    "cancelled",  # it was taken back while it waited for its turn
    "quarantined",  # a provider refused it: it is left out, or its words are
    "rolled_back",  # it was taken back
    "not_for_models",  # a fact about the conversation
    "not_held",  # older than what is in memory
]


class OmissionReasons:
    def __init__(
        self, history: ConversationHistory, view: ContextView, prompt_ref: PromptReference
    ) -> None:
        self._history = history
        self._selection = view.selection
        self._quarantined = history.hidden_from(view.call_budget.provider).entries
        self._own = history.turn(prompt_ref) if isinstance(prompt_ref, str) else None
        self._number = history.head_seq + 1 if self._own is None else self._own.number
        self._hidden = history.hidden
        turns_max, shown = history.turns_max, history.shown_turns
        self._shown = {turn.number: turn for turn in shown}
        self._of_turns: dict[str, OmissionReason | None] = {}
        first = 0 if turns_max is None else max(0, self._selection.until - turns_max)
        self._window_from = 0
        if first:
            self._window_from = shown[first].number if first < len(shown) else self._number

    def of(self, entry: Entry) -> OmissionReason:
        if self._hidden and is_in(self._hidden, entry.seq):
            return "rolled_back"
        if entry is self._selection.compaction:
            return "head"
        if not isinstance(entry, ModelInputEntry | ModelOutputEntry | ToolResultsEntry):
            return "quarantined" if entry.seq in self._quarantined else "not_for_models"
        turn_id = entry.turn_id or ""
        turn = self._history.turn(turn_id)
        if turn is None:
            return "unpaired"
        if turn_id not in self._of_turns:
            self._of_turns[turn_id] = self._of_turn(turn)
        if (reason := self._of_turns[turn_id]) is not None:
            return reason
        if entry.seq in self._quarantined:
            return "quarantined"
        is_shown = any(each.seq == entry.seq for step in steps_of(turn, ()) for each in step)
        return "omitted" if is_shown else "unpaired"

    def _of_turn(self, turn: Turn) -> OmissionReason | None:
        """`None`: it is shown, but for single entries."""
        if turn is self._own:
            return None
        if turn.end is None:
            return "abandoned" if turn.abandoned else "later"
        if turn.never_began:
            return "cancelled"
        if self._shown.get(turn.number) is not turn:
            return "cleared"
        if turn.number > self._number:
            return "later"
        if turn.number < self._window_from:
            return "window"
        if self._selection.covers(turn):
            return "compacted"
        return "omitted" if self._selection.level_of(turn) is None else None


Reason: TypeAlias = ShownLevel | Literal["system", "head", "tools", "mixed"] | OmissionReason

_KINDS: Final[dict[ContextRole, str]] = {
    "system": "system_instruction",
    "model_input": "model_input",
    "model_output": "model_output",
    "tool_result": "tool_results",
}
_ROLES: Final = {
    "system_instruction": "system",
    "model_input": "user",
    "model_output": "assistant",
    "tool_results": "tool",
}


class EntryReport(Struct, frozen=True, kw_only=True, gc=False):
    seq: int
    """0: no entry, but something that is sent."""
    reason: Reason
    kind: str = ""
    """Empty for a run of several kinds."""
    role: str | None = None
    level: ShownLevel | Literal["mixed"] | None = None
    tokens: int = 0
    last_seq: int | None = None
    """The last entry of the run that the row stands for."""

    @property
    def through_seq(self) -> int:
        return self.seq if self.last_seq is None else self.last_seq


def report_entries(
    history: ConversationHistory, view: ContextView, prompt_ref: PromptReference = None
) -> tuple[EntryReport, ...]:
    """Reports the context that `Projection.context` gave for the same question, ordered by seq. The
    tokens of all rows add up to those of the view."""
    sent = list(_sent(history, view))
    by_seq: dict[int, EntryReport] = {}
    for row in sent:
        if row.seq:  # an answer that was rejected is two messages
            earlier = by_seq.setdefault(row.seq, row)
            if earlier is not row:
                by_seq[row.seq] = replace(earlier, tokens=earlier.tokens + row.tokens)
    reasons = OmissionReasons(history, view, prompt_ref)
    rows = [row for row in sent if not row.seq]
    expected = 1

    def run_of(numbered: tuple[int, Entry]) -> tuple[int, OmissionReason | None]:
        """A key that is equal for adjacent entries left out for the same reason."""
        place, entry = numbered
        if entry.seq in by_seq:
            return entry.seq, None
        return entry.seq - place, reasons.of(entry)

    for (_, reason), numbered in groupby(enumerate(history.entries), run_of):
        run = [entry for _, entry in numbered]
        first, last = run[0].seq, run[-1].seq
        if first > expected:
            rows.append(EntryReport(seq=expected, last_seq=first - 1, reason="not_held"))
        if reason is None:
            rows.append(by_seq[first])
        else:
            kind = _common((entry.kind for entry in run), "")
            role, last_seq = _ROLES.get(kind), last if last > first else None
            rows.append(
                EntryReport(seq=first, last_seq=last_seq, kind=kind, role=role, reason=reason)
            )
        expected = last + 1
    # A prompt and an epoch that are not written yet.
    drafts = sorted(
        (row for row in by_seq.values() if row.seq >= expected), key=lambda row: row.seq
    )
    return (*rows, *drafts)


def _sent(history: ConversationHistory, view: ContextView) -> Iterator[EntryReport]:
    """The rows of what is sent, message by message; the tools come first."""
    if view.call_budget.tools_tokens:
        yield EntryReport(seq=0, kind="tools", tokens=view.call_budget.tools_tokens, reason="tools")
    head_is_next = view.has_head
    quarantined = history.hidden_from(view.call_budget.provider).entries
    for message, tokens in zip(view.messages, view.sizes, strict=True):
        row = EntryReport(
            seq=message.seq,
            kind=_KINDS[message.role],
            role=_ROLES[_KINDS[message.role]],
            level=message.level,
            tokens=tokens,
            # The context shows that a tool ran, without its arguments and result.
            reason="quarantined" if message.seq in quarantined else message.level,
        )
        if message.role == "system":
            shown = (e.seq for e in history.active if isinstance(e, SystemInstructionEntry))
            yield replace(row, seq=max(shown, default=0), reason="system")
        elif head_is_next:
            head_is_next = False
            yield replace(row, seq=view.selection.epoch_seq, kind="epoch", reason="head")
        else:
            yield row


# The texts beside the rows, cut to fair shares

_TEXT_BYTES_MIN: Final = 200
"""A shorter text would be useless."""
_AROUND_TEXT_BYTES: Final = 200
"""Reserved for the names and numbers next to a text."""


def _fair_share(sizes: Sequence[int], room: int) -> int:
    """The limit for each text so that all of them fit. Texts below it leave their rest to the
    others."""
    room -= _AROUND_TEXT_BYTES * len(sizes)
    for place, size in enumerate(sorted(sizes)):
        share = room // (len(sizes) - place)
        if size > share:
            return max(_TEXT_BYTES_MIN, share)
        room -= size
    return max(_TEXT_BYTES_MIN, *sizes) if sizes else _TEXT_BYTES_MIN


def _text_sizes(message: ContextMessage | None) -> list[int]:
    match message:
        case None:
            return []
        case SystemMessage():
            return [_text_size(message.instruction)]
        case ModelInputMessage():
            return [_text_size(message.text) + len(orjson.dumps(_attached(message.attachments)))]
        case ModelOutputMessage():
            arguments = (call.raw_arguments for call in message.tool_calls)
            return [*map(_text_size, (message.content, *arguments))]
        case ToolResultsMessage():
            return [*map(_text_size, message.texts)]


def _text_size(text: str) -> int:
    return len(orjson.dumps(text))


def _words_of(message: ContextMessage | None, bytes_max: int) -> JsonObject:
    """The message's texts as JSON, each cut to that size."""
    match message:
        case None:
            return {}
        case SystemMessage():
            return _cut("content", message.instruction, bytes_max)
        case ModelInputMessage():
            message_json = _cut("content", message.text, bytes_max)
            if message.attachments:
                message_json["attachments"] = _attached(message.attachments)
            return message_json
        case ModelOutputMessage():
            message_json = _cut("content", message.content, bytes_max)
            if message.tool_calls:
                message_json["tool_calls"] = [
                    {
                        "tool_name": call.tool_name,
                        "tool_call_id": call.tool_call_id,
                        **_cut("arguments", call.raw_arguments, bytes_max),
                    }
                    for call in message.tool_calls
                ]
            return message_json
        case ToolResultsMessage():
            results: list[JsonValue] = [
                {
                    "tool_name": result.tool_name,
                    "tool_call_id": result.tool_call_id,
                    "status": result.status,
                    **_cut("result", text, bytes_max),
                }
                for result, text in zip(message.results, message.texts, strict=True)
            ]
            shown: JsonObject = {"attachments": _attached(message.images)} if message.images else {}
            return {"results": results, **shown}


def _attached(files: Iterable[ContextAttachment]) -> list[JsonValue]:
    return [
        {
            "filename": one.name,
            "content_type": one.content_type,
            **({"reason": one.reason} if one.reason else {}),
        }
        for one in files
    ]


def _cut(name: str, text: str, bytes_max: int) -> JsonObject:
    if len(text) * 6 <= bytes_max or (size := _text_size(text)) <= bytes_max:
        return {name: text}
    return {name: text[: len(text) * bytes_max // size], "truncated": True, "size": len(text)}


# Rows and texts within the bytes of a message

_ReportedRow: TypeAlias = tuple[EntryReport, ContextMessage | None]
"""A row, and the message of the context that it describes."""
_T = TypeVar("_T")

_KEPT_APART: Final = ("system", "head", "tools")
"""Rows that are never joined: there are only a few, and every reader wants them."""


def rows_within(
    rows: Sequence[EntryReport], view: ContextView, *, bytes_max: int
) -> tuple[JsonObject, ...]:
    shown = list(zip(rows, _messages(rows, view), strict=True))
    room, written = bytes_max, list[JsonObject]()
    for row, message in shown:
        written.append(_as_json(row) | _words_of(message, bytes_max))
        room -= _written_size(written[-1])
        if room < 0:
            break
    else:
        return tuple(written)
    # At most half is for the rows themselves, because a report without any text is useless.
    shown = _joined_within(shown, bytes_max // 2)
    written = [_as_json(row) for row, _ in shown]
    room = bytes_max - sum(map(_written_size, written))
    share = _fair_share([size for _, message in shown for size in _text_sizes(message)], room)
    for place in range(len(shown) - 1, -1, -1):
        words = _words_of(shown[place][1], share)
        size = _written_size(words)
        if size <= room:
            written[place] |= words
            room -= size
    return tuple(written)


def _written_size(row: JsonObject) -> int:
    """The size of the row in bytes, with the comma after it."""
    return len(orjson.dumps(row)) + 1


def _messages(rows: Sequence[EntryReport], view: ContextView) -> Iterator[ContextMessage | None]:
    by_seq = {one.seq: one for one in reversed(view.messages) if one.seq}
    first = [one for one in view.messages[:2] if isinstance(one, SystemMessage)]
    head = view.messages[len(first)] if view.has_head else None
    for row in rows:
        if row.level is None:
            yield None
        elif row.reason == "system":
            yield first[0] if first else None
        else:
            yield head if row.reason == "head" else by_seq.get(row.seq)


def _joined_within(shown: Sequence[_ReportedRow], bytes_max: int) -> list[_ReportedRow]:
    """The newest rows unchanged, and older adjacent rows joined: those with equal level and reason
    if that is enough, else all."""
    sizes = [_written_size(_as_json(row)) for row, _ in shown]
    if sum(sizes) <= bytes_max:
        return list(shown)
    first, room = len(shown), bytes_max // 2
    while sizes[first - 1] <= room:
        first -= 1
        room -= sizes[first]
    older = _joined(shown[:first], only_alike=True)
    if sum(sizes[first:]) + sum(_written_size(_as_json(row)) for row, _ in older) > bytes_max:
        older = _joined(shown[:first], only_alike=False)
    return [*older, *shown[first:]]


def _joined(shown: Iterable[_ReportedRow], *, only_alike: bool) -> list[_ReportedRow]:
    runs: list[list[_ReportedRow]] = []
    for one in shown:
        if runs and _may_join(runs[-1][-1][0], one[0], only_alike=only_alike):
            runs[-1].append(one)
        else:
            runs.append([one])
    return [run[0] if len(run) == 1 else (_as_one([row for row, _ in run]), None) for run in runs]


def _may_join(row: EntryReport, following: EntryReport, *, only_alike: bool) -> bool:
    """Whether the rows are adjacent and, with `only_alike`, have equal level and reason."""
    if row.reason in _KEPT_APART or following.reason in _KEPT_APART:
        return False
    if only_alike and (row.level is None or row.level != following.level):
        return False
    if only_alike and row.reason != following.reason:
        return False
    return row.seq > 0 and row.through_seq + 1 == following.seq


def _as_one(run: Sequence[EntryReport]) -> EntryReport:
    return EntryReport(
        seq=run[0].seq,
        last_seq=run[-1].through_seq,
        kind=_common((row.kind for row in run), ""),
        role=_common((row.role for row in run), None),
        level=_common((row.level for row in run), "mixed"),
        tokens=sum(row.tokens for row in run),
        reason=_common((row.reason for row in run), "mixed"),
    )


def _common(values: Iterable[_T], otherwise: _T) -> _T:
    found = set(values)
    return found.pop() if len(found) == 1 else otherwise


def _as_json(row: EntryReport) -> JsonObject:
    out: JsonObject = {"seq": row.seq, "kind": row.kind, "tokens": row.tokens}
    if row.through_seq != row.seq:
        out["through_seq"] = row.through_seq
    if row.role is not None:
        out["role"] = row.role
    if row.level is not None:
        out["detail"] = row.level
    if row.reason != "live":
        out["reason"] = row.reason
    return out


# The reports


async def context_report(
    context: ContextManager, *, model: str, text: str | None, bytes_max: int
) -> ContextAccount:
    """Reports the context of a prompt with this text, or without a text, the context that a prompt
    would be added to."""
    await context.ready()
    report = partial(_context_report, context, model, text, bytes_max)
    return await context.compute(report, characters=len(text or ""))


def _context_report(
    context: ContextManager, model: str, text: str | None, bytes_max: int
) -> ContextAccount:
    prompt_ref: PromptReference = None
    if text is not None:
        prompt_ref = context.state.draft_model_input(ModelInputEntry(content=text))
    call_budget = context.call_budget(model)
    projection = context.expected_projection()
    epoch = projection.due_epoch(prompt_ref, call_budget, screen=context.state.screen)
    view = projection.context(prompt_ref, call_budget, epoch=epoch)
    given = ContextAccount(
        session_id=context.record.session_id,
        model=model,
        epoch=projection.history.epoch.seq if projection.history.epoch else 0,
        budget_tokens=call_budget.budget_tokens or 0,
        entries=(),
        totals={"counter": context.services.counting.now.name, "trimmed": view.is_trimmed},
        begins_epoch=epoch.reason if epoch is not None else None,
    )
    rows = report_entries(projection.history, view, prompt_ref)
    return _with_rows(given, rows, view, bytes_max)


def _with_rows(
    given: ContextAccount, rows: Sequence[EntryReport], view: ContextView, bytes_max: int
) -> ContextAccount:
    counts: JsonObject = {
        "tokens": view.tokens,
        "tools": view.call_budget.tools_tokens,
        "shown": sum(row.level is not None for row in rows),
        "left_out": sum(
            row.through_seq - row.seq + 1 for row in rows if row.level is None and row.seq
        ),
    }
    given = replace(given, totals=counts | given.totals)
    room = bytes_max - _written_size(to_object(given))
    return replace(given, entries=rows_within(rows, view, bytes_max=room))


async def sent_context_report(
    context: ContextManager, *, seq: int, bytes_max: int
) -> ContextAccount:
    """Reports the context of a call that was made: the one whose output is entry `seq`, or the last
    one if `seq` is 0. It is built again from the entries of that time; `exact` in the totals says
    whether it has as many tokens, and the tools, that the output notes."""
    await context.ready()
    record, services = context.record, context.services
    entries: list[Entry] = []
    output: ModelOutputEntry | None = None
    async for batch in record.profile.store.entries(record.session_id, through=seq or None):
        for entry in batch:
            if isinstance(entry, ModelOutputEntry) and (entry.seq == seq or not seq):
                output = entry
        entries += batch
    if output is None or output.sent is None or output.invocation is None:
        what = f"entry {seq} is no answer of a model" if seq else "no model has answered here yet"
        raise RequestError(
            ErrorCode.NOT_FOUND, f"{what}, so there is no call to show", field="call"
        )
    turn_id, model, sent = output.turn_id, model_name(output.invocation), output.sent
    seen = [entry for entry in entries if entry.seq <= (sent.head_seq or output.seq - 1)]
    prompts = (entry for entry in seen if isinstance(entry, ModelInputEntry | ToolResultsEntry))
    await context.attachments.read(each for prompt in prompts for each in file_ids_of(prompt))
    measure = Measure(services.counting.now, attachments=context.attachments.contents)
    of_turn = (entry for entry in seen if entry.turn_id == turn_id)
    prompt = next((entry for entry in of_turn if isinstance(entry, ModelInputEntry)), None)
    if prompt is not None:
        prompt = await record.with_tools(prompt)
    call_budget = context.call_budget(model, prompt=prompt)
    has_its_tools = sent.tools_digest == call_budget.offer.digest
    call_budget = replace(
        call_budget,
        # What was not trimmed then is not trimmed now, whatever the counter says.
        budget_tokens=sent.budget_tokens if sent.trimmed else None,
        tools_tokens=call_budget.tools_tokens if has_its_tools else 0,
    )

    def report() -> ContextAccount:
        history = ConversationHistory(record.session_id, seen, turns_max=record.profile.turns_max)
        projection = Projection(history, measure, policy=services.rules.policy)
        try:
            view = projection.context(turn_id, call_budget)
        except WindowTooSmall:
            view = projection.context(turn_id, replace(call_budget, budget_tokens=None))
        given = ContextAccount(
            session_id=record.session_id,
            model=model,
            epoch=history.epoch.seq if history.epoch else 0,
            budget_tokens=sent.budget_tokens,
            entries=(),
            totals={
                "counter": services.counting.now.name,
                "trimmed": sent.trimmed,
                "sent_tokens": sent.tokens,
                "exact": has_its_tools and view.tokens == sent.tokens,
            },
            call=output.seq,
        )
        return _with_rows(given, report_entries(history, view, turn_id), view, bytes_max)

    return await record.in_thread(report)


def usage_of(context: ContextManager, model: str) -> UsageAccount:
    """Reports the tokens used. Call it after `ContextManager.ready`."""
    services = context.services
    call_budget = context.call_budget(model)
    projection = context.expected_projection()
    try:
        epoch = projection.due_epoch(None, call_budget, screen=context.state.screen)
        next_tokens = projection.context(None, call_budget, epoch=epoch).tokens
    except WindowTooSmall as error:
        next_tokens = error.needed_tokens  # the billed tokens are reported in any case
    row = context.record.row
    bills, details = (row.billed, row.billed_details) if row is not None else ((), ())
    known = {name: services.models.facts(name).prices for name, *_ in bills}
    prices = {name: price for name, price in known.items() if price is not None}
    billed, cost = billed_series(bills, details, prices)
    counting = services.counting
    tokens = counting.correction.corrected(model, next_tokens)
    estimate: JsonObject = {"tokens": tokens, "counter": counting.now.name}
    if budget := call_budget.budget_tokens:
        estimate["percent"] = round(100 * next_tokens / budget, 1)
    return UsageAccount(
        session_id=context.record.session_id,
        model=model,
        billed=billed,
        occupancy=_occupancy(context, model),
        estimate=estimate,
        cost=cost,
    )


def _occupancy(context: ContextManager, model: str) -> JsonObject:
    """How full the window was in the last call, whichever model was called."""
    services = context.services
    for entry in reversed(context.record.history.entries):
        if isinstance(entry, ModelOutputEntry | FaultEntry) and entry.invocation is not None:
            called = model_name(entry.invocation)
            sent = entry.sent if isinstance(entry, ModelOutputEntry) else None
            return occupancy_of(
                entry.usage,
                counted=sent.tokens if sent is not None else 0,
                context_tokens=services.models.facts(called).context_tokens,
            )
    window = services.models.facts(model).context_tokens
    return occupancy_of(None, counted=0, context_tokens=window)
