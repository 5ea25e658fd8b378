"""A conversation that many models answer in turn, and to which everything happens: it is
cancelled, its providers fail, its server dies and another one takes it up.

The conversation is the real one, with its turn loop, its tools, its epochs and its
record in memory; only HTTP and the disk are left out. A death is the record as it was
in one moment, read again from its lines, and a server that opens it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Final, Literal, TypeAlias, get_args

import anyio
from tests.server.services import Clock, make_services
from tests.support.vendor_models import VendorVoice, all_voices
from tests.vendors import Part, Rejection, Text

from nplt_protocol.errors import RequestError
from nplt_protocol.json_text import JsonObject
from nplt_protocol.messages import Prompt, Receipt
from nplt_server.conversations.conversation import Conversation
from nplt_server.conversations.operations import clear, roll_back
from nplt_server.conversations.services import ContextServices
from nplt_server.conversations.session_manager import SessionManager
from nplt_server.errors import ProviderUnavailable
from nplt_server.providers import ModelCatalog, ModelFacts
from nplt_server.providers.router import ProviderRouter
from nplt_server.tokens import CharacterCounter, TokenCounting
from nplt_server.tools import Tool, ToolDescription, ToolFailed, ToolHost
from nplt_server.tools.builtin import now_tool
from nplt_storage.codec import decode_line, encode_line
from nplt_storage.entries import (
    Entry,
    ModelInputEntry,
    ModelOutputEntry,
    QuarantineEntry,
    ToolResultsEntry,
)
from nplt_storage.errors import BadEntry
from nplt_storage.memory import MemoryStore, StoredConversation

Mishap: TypeAlias = Literal["cancel", "crash", "fail", "no_end"]
Change: TypeAlias = Literal[
    "clear", "roll_back", "quarantine", "quarantine_results", "instruct", "note"
]
CHANGES: Final[tuple[Change, ...]] = get_args(Change)
MODELS: Final = (
    "chat/gpt-4o-mini",
    "chat/gpt-5.6",
    "responses/gpt-4o-mini",
    "responses/gpt-5.6",
    "anthropic/claude-opus-4-5",
    "anthropic/claude-opus-5-5",
)
_USER = "local"
_NOW = now_tool(Clock())


@dataclass(frozen=True, slots=True)
class Break:
    """What happens, and when: in the so-manieth call of the turn, after such a share of
    its answer; `in_tool`: while one of its tools runs."""

    mishap: Mishap
    call: int = 0
    share: float = 0.5
    in_tool: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPlan:
    model: str
    prompt: str = "and now?"
    thinks: bool = True
    answers: tuple[tuple[Part, ...], ...] = ()
    """One after the other; then the model says that it is done."""
    broken: Break | None = None
    before: Change | None = None
    waits_behind: bool = False
    """A second prompt comes before the first is answered."""


class Life:
    """One conversation, from its first prompt on, through as many servers as it takes.
    It is also who tells the models what to say."""

    def __init__(self, *, context_tokens: int = 128_000) -> None:
        self._plan = TurnPlan(model=MODELS[0])
        self._calls = 0
        self._numbers = count(1)
        self._died = anyio.Event()
        self._snapshot: MemoryStore | None = None
        self._store = MemoryStore(Clock())
        self._facts = ModelFacts(context_tokens=context_tokens)
        self._conversation: Conversation | None = None
        self.voices: Sequence[VendorVoice] = tuple(all_voices(self))
        self.deaths = 0
        self.cancels = 0

    @property
    def rejections(self) -> list[Rejection]:
        return [each for voice in self.voices for each in voice.rejections]

    @property
    def calls(self) -> int:
        return sum(len(voice.usages) for voice in self.voices)

    @property
    def entries(self) -> Sequence[Entry]:
        return next(iter(self._store._conversations.values())).entries

    async def live(self, plans: Sequence[TurnPlan]) -> None:
        left = list(plans)
        session_id: str | None = None
        while left or self._died.is_set():
            self._died = anyio.Event()
            async with self._server() as session_manager:
                if session_id is None:
                    conversation = session_manager.new(_USER)
                    session_id = conversation.session_id
                else:
                    conversation = await session_manager.get(session_id, _USER)
                self._conversation = conversation
                await self._until_quiet()
                while left and not self._died.is_set():
                    await self._play(left.pop(0))
            if self._snapshot is not None:
                self._store, self._snapshot = self._snapshot, None

    async def _play(self, plan: TurnPlan) -> None:
        assert self._conversation is not None
        self._plan, self._calls = plan, 0
        await self._change(plan.before)
        options: JsonObject = {"effort": "high"} if plan.thinks else {}
        prompt = Prompt(text=plan.prompt, model=plan.model, options=options)
        receipts: list[Receipt] = []
        await self._conversation.accept(prompt, receipt=receipts.append)
        if plan.waits_behind:
            await self._conversation.accept(prompt, receipt=receipts.append)
        await self._until_quiet()

    # What the models are told

    def next_answer(self) -> Sequence[Part]:
        number, self._calls = self._calls, self._calls + 1
        answers = self._plan.answers
        return answers[number] if number < len(answers) else (Text("done"),)

    async def listens(self, events: int, of: int) -> bool:
        broken = self._plan.broken
        if broken is None or broken.in_tool or broken.call != self._calls - 1:
            return True
        return events != int(broken.share * of) or await self._befall()

    async def _look(self, _: JsonObject, __: ToolHost) -> str:
        broken = self._plan.broken
        if broken is not None and broken.in_tool:
            if broken.mishap == "fail":
                raise ToolFailed("it broke")
            await self._befall()
        return "seen"

    async def _befall(self) -> bool:
        """Whether the model goes on, if anything does."""
        broken, self._plan = self._plan.broken, replace(self._plan, broken=None)
        assert broken is not None
        assert self._conversation is not None
        match broken.mishap:
            case "cancel":
                self.cancels += 1
                running = self._conversation.snapshot().active_turn
                assert running is not None
                self._conversation.cancel(running.turn_id)
                await anyio.sleep_forever()
            case "crash":
                self.deaths += 1
                self._snapshot = _read_again(self._store)
                self._died.set()
                await anyio.sleep_forever()
            case "fail":
                raise ProviderUnavailable("it broke", before_first_token=False)
            case "no_end":
                pass
        return False

    # What people change

    async def _change(self, change: Change | None) -> None:
        conversation = self._conversation
        assert conversation is not None
        entries = conversation.history.entries
        match change:
            case "clear":
                await clear(conversation)
            case "roll_back" if entries:
                # Where nothing can be taken back, nothing is.
                with suppress(RequestError, BadEntry):
                    await roll_back(conversation, entries[len(entries) // 2].seq)
            case "quarantine" | "quarantine_results":
                kinds = (
                    ToolResultsEntry
                    if change == "quarantine_results"
                    else (ModelInputEntry, ModelOutputEntry)
                )
                seqs = [entry.seq for entry in entries if isinstance(entry, kinds)]
                for target in seqs[len(seqs) // 2 :][:1]:
                    await conversation.append_entry(
                        QuarantineEntry(target_seq=target, code="poison", content="refused")
                    )
            case "instruct" if conversation.record.is_stored:
                await conversation.state.set_system_instruction(f"be brief, {len(entries)}")
            case "note" if conversation.record.is_stored:
                await conversation.state.update_memory_notebook(f"{len(entries)} so far")
            case _:
                pass

    # The server

    @asynccontextmanager
    async def _server(self) -> AsyncIterator[SessionManager]:
        look = Tool(
            description=ToolDescription(
                name="look",
                description="Looks at something.",
                parameters={"type": "object", "properties": {"at": {"type": "string"}}},
            ),
            run=self._look,
        )
        async with anyio.create_task_group() as tasks:
            services = make_services(
                tasks,
                self.voices[0],
                tools=(_NOW, look),
                store=self._store,
                context_services=ContextServices(
                    counting=TokenCounting(CharacterCounter()),
                    models=ModelCatalog(dict.fromkeys(MODELS, self._facts)),
                ),
            )
            services.router = ProviderRouter(self.voices)
            services.new_entry_id = lambda: f"id{next(self._numbers)}"
            yield SessionManager(services)
            tasks.cancel_scope.cancel()

    async def _until_quiet(self) -> None:
        """Or until the server dies."""
        assert self._conversation is not None
        async with anyio.create_task_group() as waiting:

            async def wait_for(what: Callable[[], Awaitable[object]]) -> None:
                await what()
                waiting.cancel_scope.cancel()

            waiting.start_soon(wait_for, self._conversation.activity.quiet)
            waiting.start_soon(wait_for, self._died.wait)


def _read_again(store: MemoryStore) -> MemoryStore:
    """What a disk would hold in this moment."""
    found = MemoryStore(Clock())
    for session_id, kept in store._conversations.items():
        found._conversations[session_id] = StoredConversation(
            kept.origin,
            kept.row,
            entries=[decode_line(encode_line(entry)) for entry in kept.entries],
            blobs=dict(kept.blobs),
            pieces=list(kept.pieces),
        )
    return found
