"""`nplt ask`: one prompt, one answer, gone.

Only the answer goes to stdout. Ctrl+C cancels the turn on the server and keeps
what there is of the answer; so does a time-out. A closed pipe cancels nothing:
the conversation has the answer for whoever comes back. A connection that is
lost is found again (`errand`), and the answer goes on where it was.
"""

from __future__ import annotations

import sys
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias
from uuid import uuid4

from nplt_client.alarm import Alarm
from nplt_client.ask_output import TextOutput
from nplt_client.ask_prompt import assemble_prompt
from nplt_client.cursor import Cursor
from nplt_client.errand import Errand
from nplt_client.errors import NpltError, TimedOut, TurnInterrupted, error_from_turn
from nplt_client.interrupts import Interrupts
from nplt_client.link import Deadline, Link
from nplt_client.opening import open_at, reopen_at
from nplt_client.settings import find_address
from nplt_client.terminal import is_terminal, say
from nplt_client.turn_record import TurnRecord
from nplt_protocol.events import ApprovalRequest, Event
from nplt_protocol.replies import (
    ApprovalDecided,
    Attached,
    Cancelled,
    SessionCreated,
    SessionRow,
)
from nplt_protocol.requests import Cancel, Prompt, SessionNew, SessionSwitch, SessionUpdate

if TYPE_CHECKING:
    from nplt_client.ask_json import JsonLinesOutput, JsonOutput

AskOutput: TypeAlias = "TextOutput | JsonOutput | JsonLinesOutput"

INTERRUPTED = 130
CANCEL_SECONDS_MAX = 5.0
CANCEL_LATE_SECONDS_MAX = 0.5
"""When time is up already."""
SHORT_ID = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class AskOrder:
    prompt: str | None
    server: str | None = None
    session: str | None = None
    model: str | None = None
    system: str | None = None
    form: Literal["text", "json", "jsonl", "code"] = "text"
    streams: bool = True
    quiet: bool = False
    timeout: float | None = None


def ask(order: AskOrder) -> int:
    output = _output_for(order)
    record = TurnRecord()
    try:
        with Alarm(order.timeout), closing(_set_out(order)) as errand, Interrupts() as interrupts:
            record = errand.record
            errand.watch(interrupts)
            _carry_out(errand, output, model=order.model)
    except NpltError as error:
        output.failed(error, record)
        raise
    output.ended(record)
    if not order.quiet:
        _tell_where(record)
    return _judged(record)


def _output_for(order: AskOrder) -> AskOutput:
    if order.form == "text":
        return TextOutput(sys.stdout, streams=order.streams, quiet=order.quiet)
    if order.form == "code":
        from nplt_client.ask_code import CodeOutput

        return CodeOutput(sys.stdout, streams=False, quiet=order.quiet)
    from nplt_client.ask_json import JsonLinesOutput, JsonOutput

    return JsonOutput(sys.stdout) if order.form == "json" else JsonLinesOutput(sys.stdout)


def _set_out(order: AskOrder) -> Errand:
    """Where the prompt will be asked; it is not sent yet."""
    deadline = Deadline(order.timeout)
    address = find_address(order.server)
    text = assemble_prompt(order.prompt, deadline)
    link = open_at(address, deadline)
    try:
        cursor = _go_to_conversation(link, order, address.session)
    except BaseException:
        link.close()
        raise
    prompt = Prompt(text=text, message_id=uuid4().hex, model=order.model)
    return Errand(link, prompt, cursor=cursor, reopen=lambda: reopen_at(address, deadline))


def _go_to_conversation(link: Link, order: AskOrder, named_in_url: str | None) -> Cursor:
    """Without a name we stay in the fresh one that every connection gets."""
    here = Cursor(session_id=link.welcome.session_id)
    if wanted := order.session or named_in_url:
        attached = link.request(SessionSwitch(session_id=wanted), Attached)
        if order.system is not None:
            link.request(SessionUpdate(system=order.system), SessionRow)
        return here.moved(attached, None)
    if order.system is not None:
        created = link.request(SessionNew(system=order.system), SessionCreated)
        return Cursor(session_id=created.session_id)
    return here


def _carry_out(errand: Errand, output: AskOutput, *, model: str | None) -> None:
    try:
        receipt = errand.ask()
        output.began(receipt, model or errand.link.welcome.model)
        errand.hear(lambda event, piece: _take(errand, output, event, piece))
    except KeyboardInterrupt:
        errand.record.abandoned = True
        _cancel(errand, output, seconds=CANCEL_SECONDS_MAX)
    except TimedOut:
        _cancel(errand, output, seconds=CANCEL_LATE_SECONDS_MAX)
        raise


def _take(errand: Errand, output: AskOutput, event: Event, piece: str) -> None:
    output.took(event, piece)
    if isinstance(event, ApprovalRequest):
        from nplt_client.approving import answer_to

        errand.link.request(answer_to(event), ApprovalDecided)


def _cancel(errand: Errand, output: AskOutput, *, seconds: float) -> None:
    """Requests take effect in order, so a CANCEL without a turn's id reaches our prompt
    even when its receipt has not arrived."""
    link, record = errand.link, errand.record
    link.deadline = Deadline(seconds)
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
