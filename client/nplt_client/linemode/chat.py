"""The chat itself: what is typed goes to the conversation, what happens there is told.

Nothing here waits for the server while a key is handled: typing and leaving
work whatever the connection does.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Sequence
from pathlib import Path
from time import monotonic

from nplt_client.chat_vocabulary import prompt_in
from nplt_client.connection_states import ConnectionState, Offline, Online, Reconnecting
from nplt_client.errors import NpltError
from nplt_client.fullscreen.changes import ApprovalWanted
from nplt_client.fullscreen.completion import Suggestion, suggestions
from nplt_client.fullscreen.connection_watch import ConnectionWatch
from nplt_client.fullscreen.prompt_history import PromptHistory
from nplt_client.fullscreen.safe_text import safe, safe_line
from nplt_client.fullscreen.sending import send_when_possible
from nplt_client.fullscreen.status import status_words
from nplt_client.fullscreen.theme_choice import THEMES, remember_theme, remembered_theme
from nplt_client.fullscreen.visit import Visit, new_message_id
from nplt_client.linemode.commands import COMMANDS, run_command
from nplt_client.linemode.composer import Composer
from nplt_client.linemode.margin import Fragment, MarginFacts, margin_rows
from nplt_client.linemode.paper import Paper
from nplt_client.linemode.printing import Printing
from nplt_client.linemode.questions import Questions
from nplt_client.linemode.telling import Telling
from nplt_client.linemode.transcript import PrintedTranscript
from nplt_client.showing import sessions_table

_LEAVE_SECONDS = 2.0


class LineChat:
    def __init__(self, visit: Visit, state_folder: Path) -> None:
        self.visit = visit
        self.wants_anew = False
        """Another connection, and to go on in it."""
        self._theme_file = state_folder / "theme"
        self._composer = Composer(
            self,
            PromptHistory(state_folder / "prompts.jsonl"),
            margin=self._margin,
            suggest=self._suggest,
        )
        self._paper = Paper(self._composer.put_above, lambda: self._composer.columns)
        self._paper.typesetter.theme = remembered_theme(self._theme_file)
        self._telling = Telling(self._paper, self._stranger)
        self._questions = Questions(visit.client)
        self._printing = Printing(
            visit,
            self._paper,
            telling=self._telling,
            questions=self._questions,
            weigh=lambda: self._begin(visit.weigh()),
            redraw=self._composer.redraw,
        )
        self.transcript = PrintedTranscript(self._paper, self._telling)
        self._watch = ConnectionWatch(visit.client)
        self._tasks: set[asyncio.Task[None]] = set()
        self._asked_to_leave = 0.0
        self._was_lost = False
        self._broken: BaseException | None = None

    @property
    def draft(self) -> str:
        return self._composer.text

    async def talk(self, draft: str = "") -> None:
        """Until the person leaves."""
        self._begin(self._printing.go(None))
        self._begin(self.visit.follow())
        self._begin(self._printing.print_on())
        try:
            await self._composer.run(draft)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._broken is not None:
            raise self._broken

    def _begin(self, deed: Awaitable[object]) -> None:
        """Beside everything else. Whatever goes wrong with it is said, and the chat goes on."""

        async def attempt() -> None:
            try:
                await deed
            except NpltError as error:
                self._paper.remark(f"✗ {safe(error.message)}", is_error=True)
                self._paper.flush()

        task = asyncio.create_task(attempt())
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """What nobody expected ends the chat: half of one would be worse."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken = error
            self.leave()

    def connection_changed(self, state: ConnectionState) -> None:
        """One line per loss and one per return; the attempts are counted in the margin."""
        match state:
            case Reconnecting(attempt=1) if state.in_seconds:
                self._was_lost = True
                self.remark(f"{state.reason}; reconnecting …")
            case Online() if self._was_lost:
                self._was_lost = False
                self.remark("online again")
            case _:
                self._composer.redraw()

    # What the person wants (`Keys`)

    def sent(self, text: str) -> None:
        prompt = prompt_in(text)
        verdict = self._questions.answer_in(text)
        if verdict is not None:
            self._begin(self.decide(allow=verdict.allow, remember=verdict.remember))
        elif prompt is not None:
            self._begin(self.ask(prompt))
        else:
            self._begin(run_command(self, text))

    def line_begins(self) -> None:
        self._questions.line_begins()

    def stop(self) -> bool:
        running = self.visit.course.running
        if running is not None:
            self._begin(self.visit.client.cancel(running))
        return running is not None

    def dropped(self) -> None:
        self.visit.replace_from = None

    def interrupted(self) -> None:
        if monotonic() - self._asked_to_leave < _LEAVE_SECONDS:
            self.leave()
        else:
            self._asked_to_leave = monotonic()
            self.remark("Ctrl+C once more leaves")

    def leave(self) -> None:
        self._composer.leave()

    def open_editor(self) -> None:
        self._begin(self._composer.edit_draft())

    # What commands may do (`Floor`)

    async def tell(self, text: str) -> None:
        self._paper.listing(safe(text))
        self._paper.flush()

    def remark(self, text: str) -> None:
        self._paper.remark(f"· {safe_line(text)}")
        self._paper.flush()

    async def go(self, going: Awaitable[object]) -> None:
        await self._printing.go(going)

    async def read_again(self) -> None:
        await self._printing.catch_up()

    async def show_older(self) -> bool:
        return False  # the scrollback has what was shown, /history the rest

    async def ask(self, text: str) -> None:
        message_id = new_message_id()
        self._telling.sending(message_id, safe(text))
        self._composer.redraw()
        try:
            await send_when_possible(self.visit, text, message_id)
        except NpltError:
            if not self._composer.text:
                self._composer.fill(text)
            raise
        finally:
            self._telling.take_back(message_id)

    def fill(self, text: str) -> None:
        self._composer.fill(text)

    async def choose(
        self, title: str, choices: Sequence[str], marked: str | None = None
    ) -> str | None:
        rows = (f"{'*' if one == marked else ' '} {safe_line(one)}" for one in choices)
        await self.tell("\n".join(rows))
        return None

    async def pick_session(self, wanted: str) -> None:
        rows = [row async for row in self.visit.client.sessions(wanted or None)]
        await self.tell(sessions_table(rows) if rows else "no conversations yet")

    async def decide(self, *, allow: bool, remember: bool) -> None:
        decided = await self._questions.decide_oldest(allow=allow, remember=remember)
        self.remark(f"{decided.tool_name}: {'allowed' if allow else 'denied'}")

    def wear(self, theme: str) -> None:
        self._paper.typesetter.theme = theme
        remember_theme(self._theme_file, theme)
        self.remark(f"the theme is now {theme}")

    def copy(self, text: str) -> None:
        coded = base64.b64encode(text.encode(errors="replace")).decode()
        self._composer.write(f"\x1b]52;c;{coded}\x07")
        self.remark(f"copied {len(text):,} characters")

    def reconnect(self) -> None:
        client = self.visit.client
        if isinstance(client.connection, Online):
            self.remark("the connection stands")
        elif isinstance(client.connection, Offline):
            self.wants_anew = True
            self.leave()
        else:
            client.reconnect_now()

    # What is shown

    def _margin(self, width: int) -> list[Fragment]:
        asked = self._questions.oldest
        facts = self.visit.facts(lag_seconds=0.0, connection=self._watch.look())
        return margin_rows(
            MarginFacts(
                unfinished=self._telling.unfinished,
                waiting=self._telling.waiting,
                question=_question(asked) if asked else "",
                status=status_words(facts, width),
            ),
            width=width,
        )

    def _suggest(self, typed: str) -> list[Suggestion]:
        arguments = {"model": self.visit.client.welcome.models, "theme": tuple(THEMES)}
        arguments |= dict.fromkeys(("allow", "deny"), ("always",))
        return suggestions(typed, COMMANDS, arguments)

    def _stranger(self) -> str:
        others = self.visit.others
        return others[0] if len(others) == 1 else "someone"


def _question(wanted: ApprovalWanted) -> str:
    return f"allow {wanted.tool_name}? y: yes, n: no, a: always in this conversation; then Enter"
