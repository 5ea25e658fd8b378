"""Tools that must be asked about, a model that calls those it is told, people who answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal, TypeVar, cast

import anyio
from tests.server.failing_store import FailingStore
from tests.server.services import Clock, EventRecorder, make_services, model_of

from nplt_protocol.json_text import JsonObject
from nplt_protocol.messages import (
    Approval,
    ApprovalDecided,
    ApprovalRequest,
    Event,
    Prompt,
    Receipt,
    SessionEvent,
    TurnFinished,
)
from nplt_server.context.messages import ModelInputMessage, ToolResultsMessage
from nplt_server.conversations.broadcast import ConnectedClient
from nplt_server.conversations.conversation import Conversation
from nplt_server.conversations.services import Services
from nplt_server.conversations.session_manager import SessionManager
from nplt_server.providers import (
    LlmRequest,
    ModelOutputDelta,
    Stopped,
    TextPiece,
    ToolCallPiece,
    UsageReport,
)
from nplt_server.settings import ApprovalSettings, Limits
from nplt_server.tools import Tool, ToolClass, ToolDescription, ToolHost
from nplt_storage.entries import ApprovalEntry, ToolCallResult, ToolResultsEntry
from nplt_storage.memory import MemoryStore
from nplt_storage.store import ConversationStore

_Event = TypeVar("_Event", bound=Event)

SOMEONE = ConnectedClient(client_id="c1", user="ada", client="test", can_decide=True)
USAGE = UsageReport(input_tokens=30, output_tokens=2)
"""The usage of each call."""


async def obedient(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
    """Calls the tools it is told, then says what they gave."""
    last = request.context[-1]
    if isinstance(last, ToolResultsMessage):
        yield TextPiece(text=" | ".join(result.result for result in last.results))
        yield USAGE
        yield Stopped(reason="end")
        return
    assert isinstance(last, ModelInputMessage)
    for number, name in enumerate(last.content.split()):
        yield ToolCallPiece(index=number, tool_name=name, arguments="{}")
    yield USAGE
    yield Stopped(reason="tool_calls")


@dataclass
class Workshop:
    """`write` must be asked about, `look` not; what hangs never ends."""

    done: list[str] = field(default_factory=list)
    looked: anyio.Event = field(default_factory=anyio.Event)
    hangs: anyio.Event = field(default_factory=anyio.Event)

    @property
    def tools(self) -> tuple[Tool, ...]:
        return (
            self._tool("write", "write"),
            self._tool("send", "network"),
            self._tool("look", "read"),
            self._tool("hang", "read"),
            self._tool("hang_up", "network"),
        )

    def _tool(self, name: str, tool_class: ToolClass) -> Tool:
        async def run(arguments: JsonObject, host: ToolHost) -> str:
            if name.startswith("hang"):
                self.hangs.set()
                await anyio.sleep_forever()
            self.done.append(name)
            self.looked.set()
            return f"{name} is done"

        described = ToolDescription(
            name=name, description="For a test.", parameters={}, tool_class=tool_class
        )
        return Tool(description=described, run=run)


class Asked:
    """A conversation in which people are asked."""

    def __init__(self, services: Services, workshop: Workshop, store: FailingStore) -> None:
        self.services = services
        self.store = store
        self.workshop = workshop
        self.session_manager = SessionManager(services)
        self.conversation = self.session_manager.new("ada")
        self.ear = self.listen()

    def listen(self, guest: ConnectedClient = SOMEONE) -> EventRecorder:
        ear = EventRecorder()
        self.conversation.broadcast.join(ear, guest)
        return ear

    async def prompt(self, text: str) -> Receipt:
        receipts: list[Receipt] = []
        await self.conversation.accept(Prompt(text=text), receipt=receipts.append)
        return receipts[0]

    async def ask(self, text: str, count: int = 1) -> list[ApprovalRequest]:
        """Prompts, and gives the questions that come of it."""
        await self.prompt(text)
        await until(lambda: len(self.conversation.approvals.pending) == count)
        return list(self.conversation.approvals.pending)

    async def answer(
        self, question: str, decision: Literal["allow", "deny"], *, remember: bool = False
    ) -> ApprovalDecided:
        decision_made = Approval(approval_id=question, decision=decision, remember=remember)
        return await self.conversation.approvals.decide(decision_made, by="ada")

    async def ended(self) -> TurnFinished:
        await self.conversation.activity.quiet()
        return self.received(TurnFinished)[-1]

    def received(self, kind: type[_Event]) -> list[_Event]:
        return [event for event in self.ear.received if isinstance(event, kind)]

    @property
    def decisions(self) -> list[JsonObject]:
        decision_made = self.received(SessionEvent)
        return [event.details for event in decision_made if event.event == "approval"]

    @property
    def facts(self) -> list[ApprovalEntry]:
        entries = self.conversation.history.entries
        return [entry for entry in entries if isinstance(entry, ApprovalEntry)]

    @property
    def results(self) -> list[ToolCallResult]:
        entries = self.conversation.history.entries
        (found,) = [entry for entry in entries if isinstance(entry, ToolResultsEntry)]
        return list(found.results)

    async def restart(self) -> Conversation:
        """As after a kill: what was in memory is out of reach, and nobody is there."""
        session_id = self.conversation.session_id
        await self.conversation.record.close()
        self.session_manager = SessionManager(self.services)
        self.conversation = await self.session_manager.get(session_id, "ada")
        self.ear = self.listen()
        return self.conversation


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def asking(
    *, seconds_max: float = 1e6, wait_when_alone: bool = False
) -> AsyncIterator[Asked]:
    async with anyio.create_task_group() as tasks:
        workshop = Workshop()
        store = FailingStore(MemoryStore(Clock()))
        services = make_services(
            tasks,
            model_of(obedient),
            tools=workshop.tools,
            store=cast(ConversationStore, store),
            limits=Limits(approval_seconds_max=seconds_max),
        )
        services.approvals = ApprovalSettings(wait_when_alone=wait_when_alone)
        yield Asked(services, workshop, store)
        tasks.cancel_scope.cancel()
