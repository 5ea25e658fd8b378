"""`nplt chat` in line mode: type, read, type.

Works on any terminal and in a pipe. The main thread talks to the person, the
connection lives in another one (`nplt_client.sync`). Ctrl+C while an answer
streams cancels it on the server and keeps what came; at the prompt it says how
to leave. Leaving stops nothing, and says how to come back. A lost connection is
said, looked for, and its answer goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from nplt_client import sync
from nplt_client.approving import ask_person
from nplt_client.background import compare_versions, ensure_running, find_server
from nplt_client.chat_commands import run_command
from nplt_client.chat_notices import NoticeBoard
from nplt_client.chat_order import ChatOrder
from nplt_client.chat_turn import TurnDisplay
from nplt_client.chat_vocabulary import prompt_in
from nplt_client.connection_states import ConnectionState, Offline
from nplt_client.errors import CannotConnect, NpltError
from nplt_client.interrupts import OnInterrupt
from nplt_client.line_input import LineInput
from nplt_client.opening import COMMAND_NAME
from nplt_client.patience import Patience
from nplt_client.settings import (
    RECONNECT_SECONDS_MAX,
    Address,
    find_address,
    find_reconnect_seconds,
)
from nplt_client.showing import history_text
from nplt_client.terminal import complain, say
from nplt_protocol.events import ApprovalRequest

MESSAGES_SHOWN_ON_RETURN = 4


def chat(order: ChatOrder) -> int:
    address = find_address(order.server)
    lines, states = LineInput(), ConnectionNews()
    with ExitStack() as stack:
        client = _connect(stack, address, lines, states)
        room = ChatRoom(client, lines, order)
        states.tell = room.board.connection_changed
        try:
            room.enter(order.resume or address.session)
            return room.talk()
        finally:
            room.leave()


class ConnectionNews:
    """Between the connection, which is there first, and the board that shows its news."""

    def __init__(self) -> None:
        self.tell: Callable[[ConnectionState], None] | None = None

    def __call__(self, state: ConnectionState) -> None:
        if self.tell is not None:
            self.tell(state)


def _connect(
    stack: ExitStack, address: Address, lines: LineInput, states: ConnectionNews
) -> sync.Client:
    # A person may wait for a server as long as they like; a script may not.
    seconds = find_reconnect_seconds(None if lines.interactive else RECONNECT_SECONDS_MAX)
    connect = partial(
        sync.connect,
        str(address),
        client_name=COMMAND_NAME,
        reconnect=Patience(give_up_seconds=seconds),
        on_connection=states,
    )
    try:
        client = stack.enter_context(connect())
    except CannotConnect as error:
        if not (address.is_default and error.nobody_listens):
            raise
        ensure_running(address)
        client = stack.enter_context(connect())
    if address.is_default and find_server() is not None:
        compare_versions(client.welcome.server)
    return client


class ChatRoom:
    def __init__(self, client: sync.Client, lines: LineInput, order: ChatOrder) -> None:
        self.client = client
        self.board = NoticeBoard(client, lines)
        self.attachments: list[str] = []
        self.model = order.model
        self.over = False
        self.worth_returning = False
        self._lines = lines
        self._order = order
        self._worst = 0
        self._asked: set[str] = set()
        """What was put to the person already."""

    def enter(self, wanted: str | None) -> None:
        if self._order.go_on:
            wanted = self._most_recent()
        if wanted is not None:
            self.board.tell_pending(self.client.switch(wanted))
            self.worth_returning = True
        if self._lines.interactive:
            say(f"{self.client.welcome.server} · {self._model_now()} · /help for help", dimmed=True)
            if wanted is not None:
                say(history_text(self.client.history(MESSAGES_SHOWN_ON_RETURN)))

    def talk(self) -> int:
        """Until the person leaves or the lines end; the worst that happened is the code."""
        while not self.over:
            line = self._next_line()
            if line is None:
                break
            if line.strip():
                self._take(line)
        return self._worst

    def leave(self) -> None:
        self.board.close()
        if self._lines.interactive and self.worth_returning:
            server = f" {self._order.server}" if self._order.server else ""
            say(f"come back with: nplt chat{server} --resume {self.client.session_id}")

    def _next_line(self) -> str | None:
        while True:
            try:
                self.board.open()
                return self._lines.read()
            except EOFError:
                if self._lines.interactive:
                    say("")
                return None
            except KeyboardInterrupt:
                self._check_connection()
                if not self._lines.interactive:
                    raise
                say("\n(Ctrl+D or /quit leaves)")
            finally:
                self.board.hold()

    def _take(self, line: str) -> None:
        try:
            prompt = prompt_in(line)
            if prompt is None:
                run_command(self, line)
            else:
                self._ask(prompt)
        except NpltError as error:
            if isinstance(self.client.connection, Offline):
                raise
            complain(error)
            if not self._lines.interactive:
                self._worst = max(self._worst, error.exit_code)
        except KeyboardInterrupt:
            self._check_connection()
            if not self._lines.interactive:
                raise

    def _ask(self, text: str) -> None:
        attachments, self.attachments = tuple(self.attachments), []
        display = TurnDisplay()
        turn = self.client.ask(text, model=self.model, attachments=attachments)
        try:
            with OnInterrupt(self.client.cancel_soon):
                for event in turn:
                    self.worth_returning = True
                    display.show(event)
                    if isinstance(event, ApprovalRequest):
                        display.end()
                        self._be_asked(event)
        finally:
            display.end()
            turn.close()
        finished = turn.finished
        if self._lines.interactive and finished is not None and finished.state == "interrupted":
            say("(interrupted)", dimmed=True)
        else:
            turn.raise_unless_completed()

    def _be_asked(self, event: ApprovalRequest) -> None:
        """Whether a tool may be run. Another client may be quicker."""
        if event.approval_id in self._asked:
            return
        self._asked.add(event.approval_id)
        try:
            verdict = ask_person(event, self._lines)
        except KeyboardInterrupt:
            self._check_connection()
            say("")
            self.client.cancel_soon()
            return
        decided = self.client.approve(
            event.approval_id, allow=verdict.allow, remember=verdict.remember
        )
        if (decided.decision == "allow") != verdict.allow:
            say(f"({decided.decided_by or 'nobody'} decided before: {decided.decision})")

    def _most_recent(self) -> str | None:
        rows = self.client.sessions()
        if not rows:
            say("there is no conversation yet; this is a new one")
            return None
        return max(rows, key=lambda row: row.updated_at).session_id

    def _model_now(self) -> str:
        return self.model or self.client.models().model

    def _check_connection(self) -> None:
        """The notice board wakes us with a Ctrl+C of its own when the server is gone."""
        if self.board.lost is not None:
            raise self.board.lost
