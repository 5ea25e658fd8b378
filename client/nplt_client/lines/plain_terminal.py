"""The line chat without a toolkit: pipes, dumb terminals, `--plain`.

The chat reads a line, prints its answer and reads the next line. Only answers to its own
lines go to stdout, piece by piece; everything else goes to stderr. A pipe gets no colours and
no cursor movement, answers are written unchanged, and the exit code is that of the worst error.

`LineReader` works in the main thread, which receives Ctrl+C; the chat's event loop runs in
another. So neither a line that is being typed nor a full pipe blocks the connection. While a
line is being read, notices are written at once, with the half-typed line below them; during
an answer they wait for its end.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import termios
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType, ModuleType
from typing import TextIO

from msgspec.structs import replace

from nplt_client.chat import changes
from nplt_client.chat.approvals import (
    DECISIONS_HELP,
    LINE_WIDTH_MAX,
    ApprovalDecision,
    ApprovalWanted,
    approval_wanted,
    parse_decision,
)
from nplt_client.chat.chat_session import ChatOptions, ChatSession, run_chat
from nplt_client.chat.input import about_file, suggestions
from nplt_client.errors import NpltError, RequestRefused, TurnInterrupted, error_from_turn
from nplt_client.lines.line_chat import LineChat, print_banner
from nplt_client.lines.printed_text import PrintedText
from nplt_client.render.terminal import (
    colour_wanted,
    dim,
    error_lines,
    exact_stream,
    is_terminal,
    print_remark,
)
from nplt_client.render.text import safe_line, sanitize
from nplt_client.settings import RECONNECT_SECONDS_MAX, state_dir
from nplt_protocol.messages import Approval, ApprovalRequest

PROMPT = "you ▸ "
_ASCII_PROMPT = "you> "
_INTERRUPTED = 130
_TURNS_KEPT = 200
_REMARK_WIDTH = 100
_MESSAGES_SHOWN = 4
_CALLS_APART = "\n\n"
_JOIN_SECONDS = 5.0
_WAKER = signal.SIGURG
"""A signal that is ignored by default."""
_WAKE_SECONDS = 0.02
_DECISION_SECONDS_MIN = 0.3
"""A line that comes sooner after a question was pasted."""


class LineReader:
    """Reads and writes in the main thread for a chat that runs in another one."""

    def __init__(self) -> None:
        self.is_interactive = is_terminal(sys.stdin)
        self.prompt = _fitting_prompt() if self.is_interactive else ""
        self.on_interrupt: Callable[[], object] | None = None
        """Called at Ctrl+C, which also ends the line that is being read. It must not raise."""
        self.on_failure: Callable[[], object] | None = None
        """Called when the output can't be written, so that the chat has to end."""
        self.complete: Callable[[str], Sequence[str]] = lambda typed: ()
        """Gives the lines that a line may become at Tab. Called in the main thread."""
        self._completed: Sequence[str] = ()
        self._readline: ModuleType | None = None
        if self.is_interactive and is_terminal(sys.stdout):
            with suppress(ImportError):
                import readline

                readline.set_completer_delims("")
                readline.set_completer(self._completion)
                readline.parse_and_bind("tab: complete")
                self._readline = readline
        self._is_erasable = colour_wanted(sys.stderr) and is_terminal(sys.stderr)
        self._changed = threading.Condition()
        self._output: deque[tuple[TextIO, str]] = deque()
        self._wanted: tuple[str, str, Future[str | None]] | None = None
        self._shown = ""
        self._is_reading = False
        self._is_interruptible = False
        self._was_interrupted = False
        self._result: Future[int] = Future()

    # In the main thread

    def serve(self, run: Callable[[], int]) -> int:
        """Runs `run` in a thread; reads and writes for it until it returns."""
        thread = threading.Thread(target=self._run, args=(run,), name="nplt-chat", daemon=True)
        try:
            with self._interrupts():
                thread.start()
                while self._serve_once():
                    pass
        except BaseException:
            if self.on_failure is not None:
                self.on_failure()
                thread.join(_JOIN_SECONDS)
            raise
        thread.join()
        return self._result.result()

    def read(self, question: str, draft: str = "") -> str:
        """Reads one line, without its newline; raises `EOFError` at the end of the input."""
        if not self.is_interactive:
            line = sys.stdin.readline()
            if not line:
                raise EOFError
            return line.rstrip("\n")
        if is_terminal(sys.stdout):
            if not draft or self._readline is None:
                return input(question)
            self._readline.set_startup_hook(partial(self._readline.insert_text, draft))
            try:
                return input(question)
            finally:
                self._readline.set_startup_hook(None)
        # `input` would write the prompt to stdout, which may be a file.
        sys.stderr.write(question)
        sys.stderr.flush()
        return input()

    def _completion(self, typed: str, place: int) -> str | None:
        """Called by readline with 0, 1 and so on, until it returns `None`."""
        if not place:
            self._completed = self.complete(typed)
        return self._completed[place] if place < len(self._completed) else None

    def _serve_once(self) -> bool:
        with self._changed:
            while not (self._output or self._wanted or self._result.done()):
                self._changed.wait()
            texts = list(self._output)
            self._output.clear()
            wanted = None if texts or self._result.done() else self._wanted
            if wanted is not None:
                self._wanted, self._shown, self._is_reading = None, wanted[0], True
        for stream, text in texts:
            stream.write(text)
            stream.flush()
        if wanted is not None:
            self._read_wanted(*wanted)
        return bool(texts) or wanted is not None

    def _read_wanted(self, question: str, draft: str, result: Future[str | None]) -> None:
        line: str | None = ""
        try:
            try:
                self._is_interruptible = True
                if self._was_interrupted:
                    raise KeyboardInterrupt
                line = self.read(question, draft)
            finally:
                # From here on the chat handles Ctrl+C.
                self._is_reading = self._is_interruptible = self._was_interrupted = False
        except EOFError:
            line = None
        except KeyboardInterrupt:
            if self.on_interrupt is not None:
                self.on_interrupt()
        if result.set_running_or_notify_cancel():
            result.set_result(line)

    @contextmanager
    def _interrupts(self) -> Iterator[None]:
        """Passes Ctrl+C to `_on_sigint`, unless the program was started to ignore it.

        Python runs a signal handler between two bytecodes. A Ctrl+C after readline has shown the
        prompt and before it sleeps would wait for the next key. So each signal is written to a
        socket, and another signal then interrupts the sleep.
        """
        former = signal.getsignal(signal.SIGINT)
        if former is signal.SIG_IGN:
            yield
            return
        noted, note = socket.socketpair()
        with noted, note:
            note.setblocking(False)
            signal.signal(signal.SIGINT, self._on_sigint)
            former_waker = signal.signal(_WAKER, lambda number, frame: None)
            former_note = signal.set_wakeup_fd(note.fileno(), warn_on_full_buffer=False)
            waking = threading.Thread(target=_wake_after_signals, args=(noted,), daemon=True)
            waking.start()
            try:
                yield
            finally:
                signal.set_wakeup_fd(former_note)
                noted.shutdown(socket.SHUT_RDWR)
                waking.join()
                signal.signal(_WAKER, former_waker)
                signal.signal(signal.SIGINT, former)

    def _on_sigint(self, number: int, frame: FrameType | None) -> None:
        if self._is_reading and not self._is_interruptible:
            self._was_interrupted = True
        elif self._is_reading or self.on_interrupt is None:
            raise KeyboardInterrupt
        else:
            self.on_interrupt()

    # In the thread of the chat

    def _run(self, run: Callable[[], int]) -> None:
        try:
            self._result.set_result(run())
        except BaseException as error:
            self._result.set_exception(error)
        with self._changed:
            self._changed.notify()

    def want_line(self, question: str, draft: str, result: Future[str | None]) -> None:
        """Requests a line. The main thread sets the result; `None` is the end of the input."""
        with self._changed:
            self._wanted = (question, draft, result)
            self._changed.notify()

    def write(self, stream: TextIO, text: str) -> None:
        """Writes without sanitizing: the chat has sanitized text for a terminal."""
        stream = exact_stream(stream)
        with self._changed:
            if not self._is_reading:
                self._output.append((stream, text))
                self._changed.notify()
                return
            if self.is_interactive:
                typed = self._readline.get_line_buffer() if self._readline else ""
                typed = sanitize(self._shown + typed)
                text = f"\r\x1b[K{text}{typed}" if self._is_erasable else f"\n{text}{typed}"
            stream.write(text)
            stream.flush()

    def stop_reading(self) -> None:
        with self._changed:
            wanted, self._wanted = self._wanted, None
            if self._is_reading:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        if wanted is not None and wanted[2].set_running_or_notify_cancel():
            wanted[2].set_result("")


def _wake_after_signals(noted: socket.socket) -> None:
    """Wakes the main thread after each signal. Runs in a thread until the socket is shut down."""
    while signals := noted.recv(64):
        if any(number != _WAKER for number in signals):
            time.sleep(_WAKE_SECONDS)
            signal.pthread_kill(threading.main_thread().ident or 0, _WAKER)


def _fitting_prompt() -> str:
    try:
        PROMPT.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return _ASCII_PROMPT
    return PROMPT


class PlainChat(LineChat):
    """The chat for a pipe or a simple terminal."""

    keys_help: Sequence[tuple[str, str]] = (("Ctrl+C", "stops the answer"), ("Ctrl+D", "leave"))
    is_sequential = True
    is_raw = True

    def __init__(self, session: ChatSession, reader: LineReader, folder: Path) -> None:
        self.is_interactive = self.attaches_mentions = reader.is_interactive
        super().__init__(session, folder)
        self._answers: deque[str] = deque(maxlen=_TURNS_KEPT)
        self._draft = ""
        self._reader = reader
        self._is_coloured = colour_wanted(sys.stderr)
        self._loop = asyncio.get_running_loop()
        self._reading = asyncio.Lock()
        self._work: asyncio.Task[None] | None = None
        self._asked: list[str] = []
        self._turns: dict[str, _PlainTurn] = {}
        self._ended: deque[str] = deque(maxlen=_TURNS_KEPT)
        self._held: list[str] = []
        self._ends_line = True
        self._is_waiting = False
        self._is_stopping = False
        self._is_over = False

    @property
    def answers(self) -> Sequence[str]:
        return self._answers

    async def show_raw(self, is_raw: bool) -> None:
        if not is_raw:
            raise RequestRefused("In this chat answers are always shown as they are written.")

    # Reading

    async def run(self, draft: str) -> str:
        self._draft = draft
        self._reader.on_interrupt = partial(self._loop.call_soon_threadsafe, self._interrupt)
        self._reader.on_failure = partial(self._loop.call_soon_threadsafe, self.leave)
        self._reader.complete = self._lines_after
        try:
            while not self._is_over:
                line = await self._read(self._reader.prompt)
                if line is None:
                    break
                if line.strip():
                    await self._take(line)
            if self.is_interactive and not self._is_over:
                self._print("")
        finally:
            self._reader.on_interrupt = self._reader.on_failure = None
        return self._draft

    async def _read(self, question: str) -> str | None:
        async with self._reading:
            draft, self._draft = self._draft, ""
            result: Future[str | None] = Future()
            self._reader.want_line(question, draft, result)
            return await asyncio.wrap_future(result)

    def _lines_after(self, typed: str) -> list[str]:
        models, names = self.session.client.welcome.models, self.session.names
        return [one.line for one in suggestions(typed, models, names)]

    async def confirms(self, path: Path) -> bool:
        """Asks the person: this terminal does not tell a pasted name from a typed one. What was
        sent before the question is no answer to it."""
        question = safe_line(f"attach {path} ({about_file(path)})? [y/n]") + " "
        while True:
            self._end_line()
            with suppress(termios.error, OSError):
                termios.tcflush(sys.stdin, termios.TCIFLUSH)
            asked_at = time.monotonic()
            line = await self._read(question)
            if line is None or self._is_stopping or self._is_over:
                return False
            decided = line.strip().lower()
            is_late = time.monotonic() - asked_at >= _DECISION_SECONDS_MIN
            if is_late and decided in ("y", "yes", "n", "no"):
                return decided in ("y", "yes")

    async def _take(self, line: str) -> None:
        """Handles one line, and waits until its prompt or command is done."""
        self._is_stopping = False
        self._work = asyncio.create_task(self._do(line))
        await asyncio.wait([self._work])
        await self.session.draw_waiting()  # earlier changes are printed before an error
        self._is_waiting = False
        work, self._work = self._work, None
        self._asked.clear()
        self._end_line()
        held, self._held = self._held, []
        for notice in held:
            self._print(notice, dimmed=True)
        if not work.cancelled() and (error := work.exception()) is not None:
            if not isinstance(error, NpltError):
                raise error
            self.put_error(error)

    async def _do(self, line: str) -> None:
        await self.take(line)
        for turn_id in self._asked:
            end = await self.session.wait_for_turn_end(turn_id)
            if end.state == "failed":
                raise error_from_turn({"code": end.error_code, "message": end.error})
            if end.state == "interrupted" and not self.is_interactive:
                raise TurnInterrupted("the answer was interrupted", text="")
            if end.state == "interrupted":
                self._held.insert(0, "(interrupted)")
            if end.state == "completed" and end.words:
                self._held.insert(0, f"({end.words})")
        async with self._reading:  # waits for a question that is still open
            pass

    def _interrupt(self) -> None:
        """Handles Ctrl+C: the first one stops the answer, the next one stops waiting for it."""
        if self._is_over:
            return
        if self._work is None and self.is_interactive:
            self.session.replace_from = None
            self._print("")
            self._note("(Ctrl+D or /quit leaves)")
        elif self._work is None or (self._is_stopping and not self.is_interactive):
            self.exit_code = _INTERRUPTED
            self.leave()
        elif self._is_stopping:
            self._work.cancel()
        else:
            self._is_stopping = True
            turn_id = self._asked[-1] if self._asked else None
            self.begin(self.session.client.cancel(turn_id))

    def end_input(self) -> None:
        """Ends the chat; called by a command, or when the chat can't go on."""
        self._is_over = True
        self._reader.stop_reading()
        if self._work is not None and asyncio.current_task() is not self._work:
            self._work.cancel()

    # Printing

    def _print(self, text: str, *, dimmed: bool = False) -> None:
        shown = dim(sanitize(text), enabled=dimmed and self._is_coloured)
        self._reader.write(sys.stderr, shown + "\n")

    def _note(self, text: str) -> None:
        if self._is_waiting:
            self._held.append(text)
        else:
            self._print(text, dimmed=True)

    def put_line(self, text: str, *, is_news: bool = False, is_error: bool = False) -> None:
        if is_news:
            self._note(f"({text})")
        else:
            self._print(text)

    def put_listing(self, text: str) -> None:
        self._print(text.rstrip("\n"))

    def put_error(self, error: NpltError) -> None:
        for line in error_lines(error):
            self._print(line)
        if not self.is_interactive:
            self.exit_code = max(self.exit_code, error.exit_code)

    async def show_turns(self, turns: changes.Turns, *, has_moved: bool) -> None:
        self._turns.clear()
        self._ended.clear()
        if self.is_interactive and turns and not has_moved:
            await self.show_history(_MESSAGES_SHOWN)

    async def show_again(self, turns: changes.Turns) -> None:
        """Prints what is missing of running turns; /history has the rest."""
        for turn_id, turn_changes in turns:
            if turn_id in self._turns:
                for change in turn_changes:
                    self.apply(change)

    def apply(self, change: changes.TurnChange) -> None:
        if change.turn_id in self._ended:
            return
        turn = self._turns.setdefault(change.turn_id, _PlainTurn())
        is_ours = self._is_waiting and self.session.client.started_here(change.turn_id)
        match change:
            case changes.PromptShown() if not change.is_mine:
                asked = "(go on)" if change.continues else change.shown
                self._note(f"someone ▸ {asked}")
            case changes.TextGrew(kind="answer"):
                new = turn.calls[change.call].grow(change.piece)
                if is_ours:
                    self._answer(turn, change.call, new)
            case changes.TextReplaced(kind="answer"):
                self._replace(turn, change, is_ours=is_ours)
            case changes.TextGrew() if is_ours:
                *lines, turn.reasoning = (turn.reasoning + change.piece).split("\n")
                for line in lines:
                    self._dimmed(line)
            case changes.ToolShown() if is_ours:
                words = f"⚙ {change.name} {change.arguments or ''}"
                if change.status != "pending":
                    took = f"{change.seconds or 0:.1f} s"
                    words = f"⚙ {change.name}: {change.status}, {took}: {change.result}"
                self._aside(turn, words)
            case changes.TurnEnded():
                self._aside(turn)
                texts = [turn.calls[call].text for call in sorted(turn.calls)]
                self._answers.append(_CALLS_APART.join(filter(str.strip, texts)))
                self._ended.append(change.turn_id)
                del self._turns[change.turn_id]
            case _:
                pass

    def _replace(self, turn: _PlainTurn, change: changes.TextReplaced, *, is_ours: bool) -> None:
        printed = turn.calls[change.call]
        take = printed.finish if change.is_stored else printed.begin_again
        new = take(change.text)
        if is_ours and new is None:
            self._note("(the answer is stored differently; /history has it)")
        elif is_ours and new:
            self._answer(turn, change.call, new)
        elif not is_ours and change.is_stored and change.text.strip():
            self._note(f"answer ▸ {change.text}")

    def _answer(self, turn: _PlainTurn, call: int, text: str) -> None:
        if not text:
            return
        self._aside(turn)
        if turn.last_call not in (None, call):
            text = _CALLS_APART + text
        turn.last_call = call
        self._reader.write(sys.stdout, sanitize(text) if is_terminal(sys.stdout) else text)
        self._ends_line = text.endswith("\n")

    def _end_line(self) -> None:
        if not self._ends_line:
            self._reader.write(sys.stdout, "\n")
            self._ends_line = True

    def put_activity(self, change: changes.ActivityChanged) -> None:
        turn = self._turns.get(change.turn_id)
        if turn is not None and self._is_waiting and change.kind != "generating":
            self._aside(turn, change.words)

    def _aside(self, turn: _PlainTurn, words: str = "") -> None:
        """Prints words below the unfinished line of reasoning."""
        if turn.reasoning:
            self._dimmed(turn.reasoning)
            turn.reasoning = ""
        if words:
            self._dimmed(safe_line(words, _REMARK_WIDTH))

    def _dimmed(self, text: str) -> None:
        """Prints dimmed text, but nothing without colours: it would look like the answer."""
        if self._is_coloured:
            self._end_line()
            self._print(text, dimmed=True)

    # Our own prompt

    async def sending(self, message_id: str, text: str) -> None:
        await super().sending(message_id, text)
        self._is_waiting = True

    async def go_on(self, text: str) -> None:
        self._is_waiting = True
        await super().go_on(text)

    def accepted(self, message_id: str, turn_id: str) -> None:
        self._asked.append(turn_id)

    # Approvals

    def put_question(self, wanted: ApprovalWanted) -> None:
        if self._is_waiting and wanted.is_mine:
            self._end_line()
            self.begin(self._decide(wanted))
        else:
            self._note(f"(may the tool {wanted.tool_name} run with {wanted.line}? /allow or /deny)")

    async def _decide(self, wanted: ApprovalWanted) -> None:
        approvals = self.session.approvals
        if not self.is_interactive:
            self._print(f"({_not_interactive(wanted)})")
            await approvals.decide(wanted, ApprovalDecision(allow=False))
            return
        if len(wanted.line) >= LINE_WIDTH_MAX:  # the line was shortened
            self._print(f"{wanted.tool_name} wants to be run with\n{wanted.arguments}")
        while True:
            line = await self._read(question_text(wanted))
            if self._is_stopping or self._is_over:
                return
            decision = ApprovalDecision(allow=False) if line is None else parse_decision(line)
            if decision is not None:
                break
            self._print(DECISIONS_HELP)
        words = await approvals.decide(wanted, decision)
        self._print(f"({words})", dimmed=True)

    # Commands

    def fill(self, text: str) -> None:
        self._draft = sanitize(text)

    def copy(self, text: str) -> None:
        if not (is_terminal(sys.stdout) and os.environ.get("TERM") not in (None, "", "dumb")):
            raise RequestRefused("There is no terminal whose clipboard could be used.")
        super().copy(text)

    def put_raw(self, text: str) -> None:
        self._reader.write(sys.stdout, text)


class _PlainTurn:
    def __init__(self) -> None:
        self.last_call: int | None = None
        self.reasoning = ""
        """The unfinished line of reasoning."""
        self.calls: defaultdict[int, PrintedText] = defaultdict(PrintedText)


def run_plain_chat(options: ChatOptions) -> int:
    """Runs the chat of `--plain`, of pipes, and of terminals that can't be drawn on."""
    reader = LineReader()

    async def talk(session: ChatSession, draft: str) -> tuple[int, str | None]:
        if reader.is_interactive:
            print_banner(session)
        return await PlainChat(session, reader, Path(state_dir())).talk(draft)

    def run() -> int:
        return run_chat(
            options,
            talk,
            # A person may wait for a server without end; a script may not.
            give_up_seconds=None if reader.is_interactive else RECONNECT_SECONDS_MAX,
            exact_answers=not is_terminal(sys.stdout),
            is_interactive=reader.is_interactive,
        )

    return reader.serve(run)


def question_text(wanted: ApprovalWanted) -> str:
    return f"may the tool {wanted.tool_name} run with {wanted.line}? [y/n/a] "


def _not_interactive(wanted: ApprovalWanted) -> str:
    return f"{wanted.tool_name} is not allowed: no one is here to decide"


def ask_for_approval(request: ApprovalRequest) -> Approval:
    """Asks for a decision in a command without a chat. Ctrl+D denies; the caller handles
    Ctrl+C."""
    wanted, reader = approval_wanted(request), LineReader()
    denied = Approval(approval_id=request.approval_id, decision="deny", remember=False)
    if not reader.is_interactive:
        print_remark(f"({_not_interactive(wanted)})")
        return denied
    former = signal.getsignal(signal.SIGINT)
    if former is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        while (decision := parse_decision(reader.read(question_text(wanted)))) is None:
            print_remark(DECISIONS_HELP)
    except EOFError:
        print_remark("")
        return denied
    finally:
        signal.signal(signal.SIGINT, former)
    allowed = "allow" if decision.allow else "deny"
    return replace(denied, decision=allowed, remember=decision.remember)
