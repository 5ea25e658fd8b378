"""`nplt ask`: sends one prompt and prints the answer.

The prompt is the argument, stdin, or the argument with stdin as context. The answer goes
to stdout as text, as its code blocks (`-x`), as the JSON that `--schema` requires, or inside
a JSON report; everything else goes to stderr. A lost connection is opened again and the
answer resumed. Ctrl+C, SIGTERM, `--timeout` and a closed pipe on stdout cancel the turn at
the server; with `--detach` the command ends when the prompt is accepted, and the turn goes
on. This module must not import asyncio.
"""

from __future__ import annotations

import os
import re
import select
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Literal, TypeAlias
from uuid import uuid4

import click
from msgspec import Struct
from msgspec.structs import replace

from nplt_client.errors import (
    ConfigurationError,
    LimitExceeded,
    NpltError,
    ProviderFailed,
    RequestRefused,
    TimedOut,
)
from nplt_client.received_turn import ReceivedTurn
from nplt_client.render.terminal import (
    AnswerWriter,
    exact_stream,
    is_terminal,
    no_remarks,
    print_remark,
)
from nplt_client.render.text import code_blocks, dump_json, sanitize_line
from nplt_client.settings import (
    LAST,
    RECONNECT_SECONDS_MAX,
    find_address,
    find_reconnect_seconds,
)
from nplt_client.wire.blocking import (
    BlockingConnection,
    Deadline,
    Interrupts,
    alarm,
    open_or_start,
    read_file,
)
from nplt_client.wire.reconnect_policy import Patience
from nplt_client.wire.wire_session import FollowedTurn
from nplt_protocol import messages
from nplt_protocol.json_text import JsonObject, JsonValue, answer_value
from nplt_protocol.messages import names_tool

if TYPE_CHECKING:
    from nplt_client.render.scrollback import MarkdownWriter

STDIN_BYTES_MAX = 64 * 1024 * 1024
REMARK_AFTER_SECONDS = 3.0
_PIECE_BYTES = 64 * 1024
INTERRUPTED = 130
CANCEL_SECONDS_MAX = 5.0
CANCEL_LATE_SECONDS_MAX = 0.5
"""The limit for cancelling after the deadline has passed."""
SHORT_ID = 8
_NOTICES = frozenset({"waiting", "cut", "notice"})
"""Kinds of AGENT_THOUGHT that people are shown."""
_PASSING = frozenset({"busy", "rate_limited"})
"""Refusals after which the same prompt is sent again."""
_WORD_STARTS = re.compile("(?<=[a-z])(?=[A-Z])")


def assemble_prompt(argument: str | None, deadline: Deadline) -> str:
    if argument == "-" or (argument is None and not is_terminal(sys.stdin)):
        text = _read_stdin(deadline)
    elif argument is None:
        raise click.UsageError("Give a prompt: nplt ask PROMPT, or nplt ask - to read stdin.")
    else:
        # Python decodes bytes that are not UTF-8 to lone surrogates.
        text = argument.encode(errors="surrogateescape").decode(errors="replace")
        context = "" if is_terminal(sys.stdin) else _read_stdin(deadline)
        if context.strip():
            text = f"{text}\n\n{context}"
    if not text.strip():
        raise click.UsageError("The prompt is blank.")
    return text


def _read_stdin(deadline: Deadline) -> str:
    source = sys.stdin.fileno()
    pieces: list[bytes] = []
    size = 0
    patience = deadline.within(REMARK_AFTER_SECONDS)
    if not select.select([source], [], [], patience.left())[0]:
        print_remark("waiting for stdin to end (</dev/null asks without it)", dimmed=True)
    while True:
        if not select.select([source], [], [], deadline.left())[0]:
            continue  # the next `deadline.left()` raises
        piece = os.read(source, _PIECE_BYTES)
        if not piece:
            break
        pieces.append(piece)
        size += len(piece)
        if size > STDIN_BYTES_MAX:
            raise LimitExceeded(
                f"stdin holds more than {STDIN_BYTES_MAX:,} bytes; send a file with -a instead"
            )
    return b"".join(pieces).decode(errors="replace")


class TextOutput:
    """Prints for people: the answer on stdout, remarks on stderr.

    Every output has these five methods. `event_received` is called with each event and the
    piece that it adds to the answer.
    """

    def __init__(self, *, streams: bool, is_raw: bool = True) -> None:
        """`is_raw`: the answer is printed as it was written, also to a terminal."""
        self._answer = AnswerWriter(sys.stdout) if is_raw else _markdown_writer()
        self._streams = streams

    def _remark(self, text: str) -> None:
        print_remark(text, dimmed=True)

    def turn_began(self, receipt: messages.Receipt, model: str) -> None:
        if receipt.position:
            ahead = "1 prompt is" if receipt.position == 1 else f"{receipt.position} prompts are"
            self._remark(f"waiting: {ahead} ahead")

    def event_received(self, event: messages.Event, piece: str) -> None:
        if self._streams:
            self._answer.write(piece)
        if isinstance(event, messages.ApprovalRequest):
            self._remark(f"the tool {event.tool_name} waits for approval")
        elif isinstance(event, messages.AgentThought) and event.type in _NOTICES and event.content:
            self._remark(event.content)

    def turn_ended(self, received: ReceivedTurn) -> None:
        if not self._streams:
            self._answer.write(received.text)
        self._answer.end_line()
        self._remark_end(received)

    def _remark_end(self, received: ReceivedTurn) -> None:
        """Says if the answer is not whole, or another model gave it."""
        for words in filter(None, (received.stop_words, received.fallback_words)):
            self._remark(words)

    def turn_failed(self, error: NpltError, received: ReceivedTurn) -> None:
        self._answer.end_line()

    def turn_detached(self, receipt: messages.Receipt) -> None:
        print(sanitize_line(f"{receipt.session_id} {receipt.turn_id}"), flush=True)
        short = receipt.session_id[:SHORT_ID]
        if receipt.due_at is not None:
            self._remark(f"the prompt runs at {_local(receipt.due_at)}; nplt history {short}")
            return
        self._remark(f"the answer goes on; to read it: nplt history {short}")


def _local(due_at: str) -> str:
    """The time in the zone of this machine, with its offset."""
    from datetime import datetime

    try:
        at = datetime.fromisoformat(due_at).astimezone()
    except ValueError:
        return sanitize_line(due_at)
    return at.isoformat(sep=" ", timespec="seconds")


def _markdown_writer() -> AnswerWriter | MarkdownWriter:
    """Formats the answer for a terminal that can show it; a file or a pipe gets the exact text."""
    if not is_terminal(sys.stdout) or os.environ.get("TERM") in (None, "", "dumb"):
        return AnswerWriter(sys.stdout)
    from nplt_client.render.scrollback import MarkdownWriter  # slow to load

    return MarkdownWriter(exact_stream(sys.stdout))


AskOutput: TypeAlias = "TextOutput | JsonOutput"
Wait: TypeAlias = Literal["no", "first", "again"]
"""Whether a busy conversation is waited for; "again" after the first refusal."""


class AskOptions(Struct, frozen=True, kw_only=True):
    prompt: str | None
    server: str | None = None
    session: str | None = None
    create: bool = False
    history: str | None = None
    model: str | None = None
    role: str | None = None
    effort: str | None = None
    temperature: float | None = None
    output_tokens: int | None = None
    schema: str | None = None
    system: str | None = None
    form: Literal["json", "jsonl", "code"] | None = None
    no_stream: bool = False
    raw: bool = False
    """Print the answer as it was written, also to a terminal."""
    attach: tuple[str, ...] = ()
    detach: bool = False
    quiet: bool = False
    timeout: float | None = None
    allow: tuple[str, ...] = ()
    """Tools that run without asking, if the server asks at all."""
    deny: tuple[str, ...] = ()
    """Tools that do not run for this prompt."""
    cut: bool = False
    """Cut a prompt in the middle that does not fit the model's window."""
    no_wait: bool = False
    """Fail if the conversation takes no further prompt now."""
    at: str | None = None
    """The time before which the prompt does not run."""
    delay: str | None = None
    """How long from now."""


def ask(options: AskOptions) -> int:
    with no_remarks() if options.quiet else nullcontext():
        return _ask(options)


def _ask(options: AskOptions) -> int:
    output = _output_for(options)
    received = ReceivedTurn()
    try:
        deadline = Deadline(options.timeout)
        not_before = _not_before(options)
        with alarm(options.timeout):
            address = find_address(options.server)
            text = assemble_prompt(options.prompt, deadline)
            # Files are read before anything is sent: one that can't be read stops the command.
            files = [_read_file(path) for path in options.attach]
            schema = None if options.schema is None else _read_schema(options.schema)
            patience = Patience(give_up_seconds=find_reconnect_seconds(RECONNECT_SECONDS_MAX))
            with open_or_start(address, deadline, patience=patience) as connection:
                features = connection.welcome.features
                if not_before is not None and messages.LATER not in features:
                    raise click.ClickException("This server is too old for --at and --in.")
                _go_to_conversation(connection, options, address.session)
                asked: JsonObject = {
                    "schema": schema,
                    "effort": options.effort,
                    "temperature": options.temperature,
                    "output_tokens": options.output_tokens,
                    "deny_tools": [*options.deny] or None,
                    "cut": options.cut or None,
                }
                prompt = messages.Prompt(
                    text=text,
                    message_id=uuid4().hex,
                    role=options.role,
                    options={name: value for name, value in asked.items() if value is not None},
                    attachments=tuple(_upload(connection, *file) for file in files),
                    not_before=not_before,
                )
                with Interrupts() as connection.interrupts:
                    _run(connection, prompt, received, output, options)
                    _mark_seen(connection, received)
                    if (options.session or address.session) is None:
                        _drop_if_failed(connection, received)
                stopped_by = connection.interrupts.signal
    except NpltError as error:
        output.turn_failed(error, received)
        raise
    is_detached = options.detach or received.is_later
    if is_detached and received.receipt is not None and not received.abandoned:
        output.turn_detached(received.receipt)
        return 0
    output.turn_ended(received)
    if stopped_by == signal.SIGTERM:
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGTERM)  # so that the exit status shows the signal
    if received.receipt is not None and received.receipt.past:
        print_remark("this time has passed; the prompt runs now", dimmed=True)
    if received.was_dropped:
        short = received.receipt.session_id[:SHORT_ID] if received.receipt else ""
        print_remark(f"the conversation is in the trash: nplt undelete {short}", dimmed=True)
    elif received.receipt is not None and is_terminal(sys.stderr):
        short = received.receipt.session_id[:SHORT_ID]
        print_remark(f"conversation {short} · go on with: nplt ask -s {short} …", dimmed=True)
    if received.abandoned or received.finished is None:
        return INTERRUPTED
    received.raise_unless_completed()
    return 0


def _not_before(options: AskOptions) -> str | int | None:
    if options.at is None and options.delay is None:
        return None
    from datetime import UTC, datetime

    from nplt_client.later import read_delay, read_time

    try:
        if options.delay is not None:
            return read_delay(options.delay)
        return read_time(options.at or "", now=datetime.now(UTC)).isoformat()
    except (ValueError, OverflowError) as error:
        option = "--at" if options.delay is None else "--in"
        raise click.UsageError(f"{option}: {error}.") from None


def _read_schema(path: str) -> JsonObject:
    from pathlib import Path

    try:
        schema = answer_value(read_file(Path(path)).decode())
    except ConfigurationError as error:
        raise click.UsageError(f"--schema: {error.message}") from None
    except ValueError as error:
        why = str(error).replace("the answer", "it", 1)
        raise click.UsageError(f"{path} holds no JSON schema: {why}.") from None
    if not isinstance(schema, dict):
        raise click.UsageError(f"{path} holds no JSON schema: it is not an object.")
    return schema


def _output_for(options: AskOptions) -> AskOutput:
    has_value = options.schema is not None
    match options.form:
        case "json":
            return JsonOutput(has_value=has_value)
        case "jsonl":
            return JsonLinesOutput(has_value=has_value)
        case "code":
            return CodeOutput(streams=False)
        case None if has_value:
            return ValueOutput(streams=False)
        case None:
            return TextOutput(streams=not options.no_stream, is_raw=options.raw)


def _read_file(path: str) -> tuple[messages.FileMetadata, bytes]:
    if path.startswith("mcp:"):  # the server fetches this file itself
        return messages.FileMetadata(filename="fetched", size=0, source=path), b""
    from pathlib import Path  # rarely needed, and slow to load

    data = read_file(Path(path))
    return messages.FileMetadata(filename=Path(path).name, size=len(data)), data


def _upload(connection: BlockingConnection, description: messages.FileMetadata, data: bytes) -> str:
    stored = connection.send_file(description, data, sent=lambda _: None)
    assert isinstance(stored, messages.FileStored)
    return stored.file_id


def _go_to_conversation(
    connection: BlockingConnection, options: AskOptions, named_in_url: str | None
) -> None:
    """Switches to the conversation, by default the fresh one that every connection gets, and
    sets its model if one was given."""
    if wanted := options.session or named_in_url:
        switch = messages.SessionSwitch(
            session_id=wanted, create=options.create, history=options.history
        )
        try:
            connection.request(switch, messages.Attached)
        except RequestRefused as error:
            if wanted != LAST or error.code != "not_found":
                raise
            print_remark("there is no conversation yet; this is a new one", dimmed=True)
            _go_to_conversation(connection, replace(options, session=None), None)
            return
    elif options.system is not None or options.history is not None:
        new = messages.SessionNew(
            system=options.system, model=options.model, history=options.history
        )
        connection.request(new, messages.SessionCreated)
        return
    if options.model is not None:
        connection.request(messages.ModelSwitch(model=options.model), messages.ModelChoice)
    if options.system is not None:
        connection.request(messages.SessionUpdate(system=options.system), messages.SessionRow)


def _run(
    connection: BlockingConnection,
    prompt: messages.Prompt,
    received: ReceivedTurn,
    output: AskOutput,
    options: AskOptions,
) -> None:
    turn, detach = connection.ask(prompt), options.detach
    wait: Wait = "no" if options.no_wait else "first"
    try:
        while (receipt := _receipt_of(connection, turn, wait=wait)) is None:
            turn, wait = connection.ask(prompt), "again"
        received.receipt = receipt
        output.turn_began(receipt, receipt.model or connection.session.model)
        if detach or received.is_later:
            return
        for event in connection.events(turn):
            output.event_received(event, received.apply(event))
            if isinstance(event, messages.ApprovalRequest):
                connection.request(_decision_on(event, options.allow), messages.ApprovalDecided)
        if received.lacks_text:
            for event in connection.read_turn(receipt):
                if isinstance(event, messages.EntryAdded):
                    output.event_received(event, received.apply(event))
    except KeyboardInterrupt:
        received.abandoned = True
        _cancel(connection, turn, received, output, seconds=CANCEL_SECONDS_MAX)
    except BrokenPipeError:  # the reader of stdout has gone
        if not detach:
            _cancel(connection, turn, received, None, seconds=CANCEL_SECONDS_MAX)
        raise
    except TimedOut:
        _cancel(connection, turn, received, output, seconds=CANCEL_LATE_SECONDS_MAX)
        raise


def _mark_seen(connection: BlockingConnection, received: ReceivedTurn) -> None:
    """Notes that the user has seen the answer, if all of it was delivered."""
    finished, receipt = received.finished, received.receipt
    if finished is None or receipt is None or finished.state == "interrupted":
        return
    if messages.WATCHING not in connection.welcome.features:  # an older server
        return
    with suppress(NpltError):  # the answer counts as unread
        connection.request(
            messages.Seen(seq=finished.seq, session_id=receipt.session_id), messages.SeenMark
        )


def _drop_if_failed(connection: BlockingConnection, received: ReceivedTurn) -> None:
    """Moves the conversation that this command began to the trash, if its turn failed without any
    output: nothing is left to go on with."""
    finished, receipt = received.finished, received.receipt
    if finished is None or finished.state != "failed" or receipt is None:
        return
    if received.text or received.tool_calls:
        return
    with suppress(NpltError):
        connection.request(
            messages.SessionDelete(session_id=receipt.session_id), messages.SessionDeleted
        )
        received.was_dropped = True


def _receipt_of(
    connection: BlockingConnection, turn: FollowedTurn, *, wait: Wait
) -> messages.Receipt | None:
    """The receipt, or `None` after a pause if the prompt has to be sent again: the same
    `message_id` is stored once."""
    try:
        return connection.result(turn)
    except LimitExceeded as error:
        if wait == "no" or error.code not in _PASSING or error.retry_after is None:
            raise
        if wait == "first":
            print_remark(f"waiting: {error.message} (--no-wait gives up instead)", dimmed=True)
        pause = error.retry_after
    import random  # rarely needed, and slow to load

    # Not all those who wait ask again at once.
    connection.pause(pause * random.uniform(0.5, 1.5))
    return None


def _decision_on(asked: messages.ApprovalRequest, allow: Sequence[str]) -> messages.Approval:
    """Allows a tool that `--allow` names, and asks about any other."""
    if any(names_tool(pattern, asked.tool_name) for pattern in allow):
        return messages.Approval(approval_id=asked.approval_id, decision="allow")
    from nplt_client.lines.plain_terminal import ask_for_approval

    return ask_for_approval(asked)


def _cancel(
    connection: BlockingConnection,
    turn: FollowedTurn,
    received: ReceivedTurn,
    output: AskOutput | None,
    *,
    seconds: float,
) -> None:
    """Cancels our turn. Requests take effect in order, so a CANCEL without a turn's id reaches
    our prompt even if its receipt has not been received."""
    if not connection.session.is_online:
        return
    connection.deadline = Deadline(seconds)
    turn_id = received.receipt.turn_id if received.receipt else None
    with suppress(NpltError):
        connection.request(messages.Cancel(turn_id=turn_id), messages.Cancelled)
        if output is not None and received.receipt is not None and received.finished is None:
            for event in connection.events(turn):
                output.event_received(event, received.apply(event))


class CodeOutput(TextOutput):
    """Prints only the code of the answer, for a file or another program. An answer that failed
    or was interrupted is not printed; an answer without code is a failure."""

    def turn_ended(self, received: ReceivedTurn) -> None:
        if received.finished is None or received.finished.state != "completed":
            return
        blocks = list(code_blocks(received.text))
        if not blocks:
            where = f": nplt history {received.receipt.session_id}" if received.receipt else ""
            raise ProviderFailed(f"there is no block of code in the answer{where}")
        # Blocks in the language of the first one are joined, separated by a blank line.
        wanted = blocks[0][0]
        others = [language or "plain" for language, _ in blocks if language != wanted]
        if others:
            self._remark(f"left out, in other languages than the first: {', '.join(others)}")
        self._answer.write("\n".join(code for language, code in blocks if language == wanted))
        self._answer.end_line()
        self._remark_end(received)


class ValueOutput(TextOutput):
    """Prints only the JSON value of the answer, on one line. An answer that failed or was
    interrupted is not printed."""

    def event_received(self, event: messages.Event, piece: str) -> None:
        super().event_received(event, piece)
        if isinstance(event, messages.AgentThought) and event.type == "retrying" and event.content:
            self._remark(event.content)

    def turn_ended(self, received: ReceivedTurn) -> None:
        if received.finished is None or received.finished.state != "completed":
            return
        self._answer.write(dump_json(answer_value(received.last_text)))
        self._answer.end_line()
        self._remark_end(received)


class JsonOutput:
    """Prints one JSON object at the end, with control characters escaped."""

    def __init__(self, *, has_value: bool) -> None:
        """`has_value`: a schema was given, so the answer is JSON."""
        self._has_value = has_value

    def _result(self, received: ReceivedTurn, error: NpltError | None = None) -> JsonObject:
        """Returns the received part of the turn, and the error that ended the command."""
        receipt, finished = received.receipt, received.finished
        result: JsonObject = {
            "session_id": receipt.session_id if receipt else None,
            "turn_id": receipt.turn_id if receipt else None,
            "text": received.text,
            "model": received.model,
            "usage": finished.usage if finished else {},
            "state": finished.state if finished else "failed" if error else "interrupted",
            "stop_reason": finished.stop_reason if finished else None,
            "fallback_from": finished.fallback_from if finished else None,
            **({"cut": finished.cut} if finished and finished.cut else {}),
            **({"later": finished.later} if finished and finished.later else {}),
            "tool_calls": list(received.tool_calls.values()),
        }
        if received.notices:
            result["notices"] = list(received.notices)
        if error:
            word = _WORD_STARTS.sub("_", type(error).__name__).lower()  # connection_lost …
            result["error"] = {"code": error.code or word, "message": error.message}
        elif finished and finished.error:
            result["error"] = finished.error
        if self._has_value and error is None and result["state"] == "completed":
            result["value"] = answer_value(received.last_text)
        return result

    def _write(self, value: JsonObject) -> None:
        print(dump_json(value), flush=True)

    def turn_began(self, receipt: messages.Receipt, model: str) -> None:
        pass

    def event_received(self, event: messages.Event, piece: str) -> None:
        pass

    def turn_ended(self, received: ReceivedTurn) -> None:
        self._write(self._result(received))

    def turn_failed(self, error: NpltError, received: ReceivedTurn) -> None:
        self._write(self._result(received, error))

    def turn_detached(self, receipt: messages.Receipt) -> None:
        ids: JsonObject = {"session_id": receipt.session_id, "turn_id": receipt.turn_id}
        due: JsonObject = {} if receipt.due_at is None else {"due_at": receipt.due_at}
        self._write({**ids, "state": receipt.state, **due})


class JsonLinesOutput(JsonOutput):
    """Prints one object per line. Its `event` is init, delta, thought, tool_use, tool_result,
    usage, error or result."""

    def turn_began(self, receipt: messages.Receipt, model: str) -> None:
        self._write_event(
            "init",
            session_id=receipt.session_id,
            turn_id=receipt.turn_id,
            message_id=receipt.message_id,
            seq=receipt.seq,
            model=model,
        )

    def event_received(self, event: messages.Event, piece: str) -> None:
        match event:
            case messages.TextDelta():
                self._write_event("delta", text=event.text, call=event.call, offset=event.offset)
            case messages.AgentThought():
                self._write_event(
                    "thought", type=event.type, text=event.text or event.content or ""
                )
            case messages.ToolStarted():
                self._write_event(
                    "tool_use",
                    tool_call_id=event.tool_call_id,
                    tool_name=event.tool_name,
                    arguments=event.arguments,
                )
            case messages.ToolFinished():
                self._write_event(
                    "tool_result",
                    tool_call_id=event.tool_call_id,
                    tool_name=event.tool_name,
                    status=event.status,
                    duration=event.duration,
                    result=event.result,
                )
            case messages.TurnFinished():
                self._write_event("usage", usage=event.usage)
                if event.error:
                    self._write_event("error", **event.error)
            case _:
                pass

    def turn_ended(self, received: ReceivedTurn) -> None:
        self._write_event("result", **self._result(received))

    def turn_failed(self, error: NpltError, received: ReceivedTurn) -> None:
        self._write_event("error", code=error.code, message=error.message, field=error.field)
        self._write_event("result", **self._result(received, error))

    def turn_detached(self, receipt: messages.Receipt) -> None:
        pass  # `init` has the receipt already

    def _write_event(self, event: str, **fields: JsonValue) -> None:
        self._write({"event": event, **fields})
