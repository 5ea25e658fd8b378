"""`nplt ask`: one prompt, one answer, gone.

Only the answer goes to stdout. Ctrl+C cancels the turn on the server and keeps
what there is of the answer; so does a time-out. A closed pipe cancels nothing:
the conversation has the answer for whoever comes back.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias
from uuid import uuid4

from nplt_client.ask_output import TextOutput
from nplt_client.ask_prompt import assemble_prompt
from nplt_client.errors import NpltError, TimedOut, TurnInterrupted, error_from_turn
from nplt_client.interrupts import Interrupts
from nplt_client.link import Deadline, Link
from nplt_client.opening import open_at
from nplt_client.settings import find_address
from nplt_client.terminal import is_terminal, say
from nplt_client.turn_record import TurnRecord
from nplt_protocol.events import SessionEvent
from nplt_protocol.replies import Attached, Cancelled, Receipt, SessionCreated, SessionRow
from nplt_protocol.requests import Attach, Cancel, Prompt, SessionNew, SessionSwitch, SessionUpdate

if TYPE_CHECKING:
    from nplt_client.ask_json import JsonLinesOutput, JsonOutput

AskOutput: TypeAlias = "TextOutput | JsonOutput | JsonLinesOutput"

INTERRUPTED = 130
CANCEL_SECONDS_MAX = 5.0
SHORT_ID = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class AskOrder:
    prompt: str | None
    server: str | None = None
    session: str | None = None
    model: str | None = None
    system: str | None = None
    form: Literal["text", "json", "jsonl"] = "text"
    streams: bool = True
    quiet: bool = False
    timeout: float | None = None


def ask(order: AskOrder) -> int:
    output = _output_for(order)
    try:
        deadline = Deadline(order.timeout)
        address = find_address(order.server)
        text = assemble_prompt(order.prompt, deadline)
        with open_at(address, deadline) as link:
            _go_to_conversation(link, order, address.session)
            prompt = Prompt(text=text, message_id=uuid4().hex, model=order.model)
            record = _converse(link, prompt, output)
    except NpltError as error:
        output.failed(error)
        raise
    output.ended(record)
    if not order.quiet:
        _tell_where(record)
    return _judged(record)


def _output_for(order: AskOrder) -> AskOutput:
    if order.form == "text":
        return TextOutput(sys.stdout, streams=order.streams, quiet=order.quiet)
    from nplt_client.ask_json import JsonLinesOutput, JsonOutput

    return JsonOutput(sys.stdout) if order.form == "json" else JsonLinesOutput(sys.stdout)


def _go_to_conversation(link: Link, order: AskOrder, named_in_url: str | None) -> None:
    """Without a name we stay in the fresh one that every connection gets."""
    if wanted := order.session or named_in_url:
        link.request(SessionSwitch(session_id=wanted), Attached)
        if order.system is not None:
            link.request(SessionUpdate(system=order.system), SessionRow)
    elif order.system is not None:
        link.request(SessionNew(system=order.system), SessionCreated)


def _converse(link: Link, prompt: Prompt, output: AskOutput) -> TurnRecord:
    record = TurnRecord()
    with Interrupts() as link.interrupts:
        try:
            record.receipt = link.request(prompt, Receipt)
            output.began(record.receipt, prompt.model or link.welcome.model)
            _follow(link, record, output, prompt)
        except KeyboardInterrupt:
            record.abandoned = True
            _cancel(link, record, output)
        except TimedOut:
            _cancel(link, record, output)
            raise
    return record


def _follow(link: Link, record: TurnRecord, output: AskOutput, prompt: Prompt) -> None:
    assert record.receipt is not None
    while record.finished is None:
        event = link.next_event()
        if getattr(event, "turn_id", None) == record.receipt.turn_id:
            output.took(event, record.apply(event))
        elif isinstance(event, SessionEvent) and event.event == "lagged":
            _catch_up(link, record, output, prompt)


def _catch_up(link: Link, record: TurnRecord, output: AskOutput, prompt: Prompt) -> None:
    """Whoever reads our stdout was so slow that the server dropped events for us.

    We attach again where we stand. The same prompt, sent again, is not run
    again: its receipt says whether the turn is still running.
    """
    from nplt_client.retelling import ENDED, retelling

    assert record.receipt is not None
    receipt = record.receipt
    call, offset = record.place
    here = Attach(session_id=receipt.session_id, turn_id=receipt.turn_id, call=call, offset=offset)
    link.request(here, Attached)
    again = link.request(replace(prompt, session_id=receipt.session_id), Receipt)
    if again.state not in ENDED:
        return
    story = retelling(again)
    try:
        request = next(story)
        while True:
            request = story.send(link.look_up(request))
    except StopIteration as told:
        for event in told.value:
            output.took(event, record.apply(event))


def _cancel(link: Link, record: TurnRecord, output: AskOutput) -> None:
    """Requests take effect in order, so a CANCEL without a turn's id reaches our prompt
    even when its receipt has not arrived."""
    link.deadline = Deadline(CANCEL_SECONDS_MAX)
    turn_id = record.receipt.turn_id if record.receipt else None
    with suppress(NpltError):
        link.request(Cancel(turn_id=turn_id), Cancelled)
        while record.receipt is not None and record.finished is None:
            event = link.next_event()
            if getattr(event, "turn_id", None) == record.receipt.turn_id:
                output.took(event, record.apply(event))


def _judged(record: TurnRecord) -> int:
    if record.abandoned or record.finished is None:
        return INTERRUPTED
    match record.finished.state:
        case "completed":
            return 0
        case "failed":
            raise error_from_turn(record.finished.error)
        case _:
            raise TurnInterrupted("the answer was interrupted", text=record.text)


def _tell_where(record: TurnRecord) -> None:
    if record.receipt is not None and is_terminal(sys.stderr):
        short = record.receipt.session_id[:SHORT_ID]
        say(f"conversation {short} · go on with: nplt ask -s {short} …", dimmed=True)
