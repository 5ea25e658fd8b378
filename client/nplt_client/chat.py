"""`nplt chat` in line mode: type, read, type.

Works on any terminal and in a pipe. The main thread talks to the person, the
connection lives in another one (`nplt_client.sync`). Ctrl+C while an answer
streams cancels it on the server and keeps what came; at the prompt it says how
to leave. Leaving stops nothing, and says how to come back.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from nplt_client import sync
from nplt_client.background import compare_versions, ensure_running, find_server
from nplt_client.chat_commands import run_command
from nplt_client.chat_notices import NoticeBoard
from nplt_client.chat_turn import TurnDisplay
from nplt_client.errors import CannotConnect, ConnectionLost, NpltError
from nplt_client.interrupts import OnInterrupt
from nplt_client.line_input import LineInput
from nplt_client.opening import COMMAND_NAME
from nplt_client.settings import Address, find_address
from nplt_client.showing import history_text
from nplt_client.terminal import complain, say

MESSAGES_SHOWN_ON_RETURN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOrder:
    server: str | None = None
    go_on: bool = False
    resume: str | None = None
    new: bool = False
    model: str | None = None


def chat(order: ChatOrder) -> int:
    address = find_address(order.server)
    with ExitStack() as stack:
        client = _connect(stack, address)
        room = ChatRoom(client, LineInput(), order)
        try:
            room.enter(order.resume or address.session)
            return room.talk()
        finally:
            room.leave()


def _connect(stack: ExitStack, address: Address) -> sync.Client:
    try:
        client = stack.enter_context(sync.connect(str(address), client_name=COMMAND_NAME))
    except CannotConnect as error:
        if not (address.is_default and error.nobody_listens):
            raise
        ensure_running(address)
        client = stack.enter_context(sync.connect(str(address), client_name=COMMAND_NAME))
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

    def enter(self, wanted: str | None) -> None:
        if self._order.go_on:
            wanted = self._most_recent()
        if wanted is not None:
            self.client.switch(wanted)
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
            if line.startswith("/") and not line.startswith("//"):
                run_command(self, line)
            else:
                self._ask(line.removeprefix("/") if line.startswith("//") else line)
        except ConnectionLost:
            raise
        except NpltError as error:
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
        finally:
            display.end()
            turn.close()
        finished = turn.finished
        if self._lines.interactive and finished is not None and finished.state == "interrupted":
            say("(interrupted)", dimmed=True)
        else:
            turn.raise_unless_completed()

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
