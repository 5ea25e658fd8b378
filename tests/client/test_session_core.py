"""The session joined with a model of a server: whatever happens to the bytes between them,
every prompt is stored once and every word of its answer is read once."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.client.scripted_peer import MODEL, SESSION

from nplt_client.errors import ConnectionLost
from nplt_client.received_turn import ReceivedTurn
from nplt_client.settings import parse_url
from nplt_client.wire.reconnect_policy import Offline, Online, Patience, Reconnecting
from nplt_client.wire.wire_session import FeedEventQueue, FollowedTurn, Phase, WireSession
from nplt_protocol.codec import encode_event
from nplt_protocol.codes import MessageType
from nplt_protocol.connection import RequestReceived
from nplt_protocol.json_text import JsonObject
from nplt_protocol.messages import (
    ActiveTurn,
    Attach,
    Attached,
    EntryAdded,
    Event,
    Hello,
    HistoryPage,
    HistoryRequest,
    PageEdges,
    Ping,
    Prompt,
    Receipt,
    Reply,
    SessionEvent,
    TextDelta,
    TurnFinished,
    TurnStarted,
    Welcome,
)
from nplt_protocol.server_connection import ServerConnection


@dataclass(kw_only=True)
class ModelTurn:
    turn_id: str
    seq: int
    answer: str
    sent_characters: int = 0
    is_over: bool = False
    has_started: bool = False


@dataclass(kw_only=True)
class Peer:
    """One connection at the server."""

    connection: ServerConnection = field(default_factory=ServerConnection)
    outgoing: bytes = b""
    is_attached: bool = False


class ModelServer:
    """One conversation with a queue of turns, as a server keeps it."""

    def __init__(self, answers: list[str]) -> None:
        self.entries: list[JsonObject] = []
        self.turns: dict[str, ModelTurn] = {}
        self.peer: Peer | None = None
        self._answers = deque(answers)
        self._welcomed = 0

    def accept(self) -> Peer:
        self.peer = Peer()
        self.peer.outgoing += self.peer.connection.send_text("hello")
        return self.peer

    def receive(self, peer: Peer, data: bytes) -> None:
        for item in peer.connection.receive_data(data):
            assert isinstance(item, RequestReceived), item
            self._answer(peer, item)
        peer.outgoing += peer.connection.data_to_send()

    def lag(self) -> None:
        """Drops this client's events from now on, as for one that reads too slowly."""
        if self.peer is not None and self.peer.is_attached:
            details: JsonObject = {"head_seq": len(self.entries)}
            self._emit(SessionEvent(session_id=SESSION, event="lagged", details=details))
            self.peer.is_attached = False

    def speak(self, length: int) -> bool:
        """The running turn goes on. False: none runs."""
        turn = self._running()
        if turn is None:
            return False
        if not turn.has_started:
            turn.has_started = True
            self._emit(
                TurnStarted(session_id=SESSION, turn_id=turn.turn_id, seq=turn.seq, model=MODEL)
            )
        elif turn.sent_characters < len(turn.answer):
            piece = turn.answer[turn.sent_characters : turn.sent_characters + length]
            self._emit(self._delta(turn, turn.sent_characters, piece))
            turn.sent_characters += len(piece)
        else:
            self._store(
                {
                    "kind": "model_output",
                    "role": "assistant",
                    "content": turn.answer,
                    "state": "completed",
                    "call": 0,
                    "turn_id": turn.turn_id,
                }
            )
            turn.is_over = True
            self._emit(
                TurnFinished(
                    session_id=SESSION,
                    turn_id=turn.turn_id,
                    state="completed",
                    seq=len(self.entries),
                )
            )
        return True

    def _running(self) -> ModelTurn | None:
        return next((turn for turn in self.turns.values() if not turn.is_over), None)

    def _answer(self, peer: Peer, item: RequestReceived) -> None:
        match item.request:
            case Hello():
                # Each connection is given a fresh conversation; the first one is ours.
                self._welcomed += 1
                peer.is_attached = self._welcomed == 1
                welcome = Welcome(
                    version=3,
                    server="model/1",
                    user="local",
                    session_id=SESSION if peer.is_attached else "f" * 32,
                    model=MODEL,
                    models=(MODEL,),
                    limits={},
                )
                peer.outgoing += peer.connection.send_welcome(item.seq, welcome)
            case Attach() as place:
                self._attach(peer, item.seq, place)
            case Prompt() as prompt:
                self._take(peer, item.seq, prompt)
            case HistoryRequest() as request:
                page = self._page(request.after or 0)
                self._reply(peer, MessageType.HISTORY_REQUEST, item.seq, page)
            case Ping():
                pass
            case other:
                raise AssertionError(other)

    def _reply(self, peer: Peer, type_: MessageType, seq: int, reply: Reply) -> None:
        peer.outgoing += peer.connection.send_reply(type_, seq, reply)

    def _attach(self, peer: Peer, seq: int, place: Attach) -> None:
        running = self._running()
        active = (
            ActiveTurn(turn_id=running.turn_id, call=0, offset=running.sent_characters, model=MODEL)
            if running is not None and running.has_started
            else None
        )
        waiting = [
            turn.turn_id
            for turn in self.turns.values()
            if not turn.is_over and (active is None or turn.turn_id != active.turn_id)
        ]
        reply = Attached(
            session_id=SESSION,
            name="n",
            model=MODEL,
            head_seq=len(self.entries),
            active_turn=active,
            queue=tuple(waiting),
        )
        self._reply(peer, MessageType.ATTACH, seq, reply)
        peer.is_attached = True
        assert place.after_seq is not None
        for entry in self.entries[place.after_seq :]:
            self._emit(self._entry(entry))
        if active is not None and running is not None:
            held = (place.offset or 0) if place.turn_id == running.turn_id else 0
            self._emit(self._delta(running, held, running.answer[held : running.sent_characters]))

    def _take(self, peer: Peer, seq: int, prompt: Prompt) -> None:
        known = next((e for e in self.entries if e.get("message_id") == prompt.message_id), None)
        turn_id = f"turn-{len(self.turns) + 1}" if known is None else str(known["turn_id"])
        if known is None:
            answer = self._answers.popleft()
            self.turns[turn_id] = ModelTurn(
                turn_id=turn_id, seq=len(self.entries) + 1, answer=answer
            )
        turn = self.turns[turn_id]
        receipt = Receipt(
            turn_id=turn.turn_id,
            session_id=SESSION,
            seq=turn.seq,
            message_id=prompt.message_id,
            position=0,
            state="completed" if turn.is_over else "running",
            duplicate=True if known else None,
        )
        self._reply(peer, MessageType.PROMPT, seq, receipt)
        if known is None:
            self._store(
                {
                    "kind": "model_input",
                    "role": "user",
                    "content": prompt.text,
                    "message_id": prompt.message_id,
                    "turn_id": turn_id,
                }
            )

    def _page(self, after: int) -> HistoryPage:
        messages = tuple(self.entries[after : after + 2])
        last = after + len(messages)
        edges = PageEdges(
            has_more_before=after > 0,
            has_more_after=last < len(self.entries),
            before=after + 1,
            after=last,
        )
        return HistoryPage(
            session_id=SESSION,
            name="n",
            message_count=len(self.entries),
            head_seq=len(self.entries),
            messages=messages,
            page=edges,
        )

    def _store(self, entry: JsonObject) -> None:
        stored: JsonObject = {"seq": len(self.entries) + 1, **entry}
        self.entries.append(stored)
        self._emit(self._entry(stored))

    def _entry(self, entry: JsonObject) -> EntryAdded:
        call = entry.get("call")
        return EntryAdded(
            session_id=SESSION,
            turn_id=str(entry["turn_id"]),
            call=call if isinstance(call, int) else None,
            entry=entry,
        )

    def _delta(self, turn: ModelTurn, offset: int, text: str) -> TextDelta:
        return TextDelta(session_id=SESSION, turn_id=turn.turn_id, call=0, offset=offset, text=text)

    def _emit(self, event: Event) -> None:
        peer = self.peer
        if peer is not None and peer.is_attached:
            peer.outgoing += encode_event(event)


class Link:
    """Carries bytes between a session and a server, and cuts where it is told to."""

    def __init__(self, server: ModelServer) -> None:
        self.server = server
        self.now = 100.0
        patience = Patience(first_seconds=0.5, most_seconds=30)
        self.session = WireSession(parse_url("nplt://model:1"), Hello(), patience=patience)
        self.session.start()
        self._peer: Peer | None = None
        self._up = b""

    def connect(self) -> None:
        while not self.session.is_online:
            self.carry(1_000, 1_000)

    def carry(self, up: int, down: int) -> None:
        self._settle()
        peer, connection = self._peer, self.session.connection
        if peer is None or connection is None:
            return
        data, self._up = self._up[:up], self._up[up:]
        self.server.receive(peer, data)
        data, peer.outgoing = peer.outgoing[:down], peer.outgoing[down:]
        self.session.receive(connection.receive_data(data), self.now)
        self._settle()

    def cut(self) -> None:
        if self._peer is not None:
            self._peer = self.server.peer = None
            self._up = b""
            self.session.connection_lost(ConnectionLost("cut"), self.now)

    def _settle(self) -> None:
        session = self.session
        if session.phase is Phase.WAITING:
            self.now = session.next_time() or self.now
        session.check_time(self.now)
        if session.wants_connection:
            session.open_connection()
            self._peer = self.server.accept()
            self._up = b""
            session.connection_made(self.now)
        self._up += session.data_to_send()

    @property
    def is_idle(self) -> bool:
        return not (self._up or (self._peer is not None and self._peer.outgoing))


def drained(events: FeedEventQueue | FollowedTurn) -> list[Event]:
    queue = events if isinstance(events, FeedEventQueue) else events.events
    taken: list[Event] = []
    while queue.is_ready and not queue.is_closed:
        event = queue.take()
        assert event is not None
        taken.append(event)
    return taken


ACTIONS = st.one_of(
    st.tuples(st.just("carry"), st.integers(0, 400), st.integers(0, 400)),
    st.tuples(st.just("speak"), st.integers(1, 5), st.just(0)),
    st.tuples(st.just("cut"), st.just(0), st.just(0)),
    st.tuples(st.just("lag"), st.just(0), st.just(0)),
    st.tuples(st.just("ask"), st.just(0), st.just(0)),
)
ANSWERS = ["the quick brown fox", "jümps över \N{FOX FACE} the", "lazy dog"]


class Run:
    """A client that asks now and then, while this and that happens to its connection."""

    def __init__(self) -> None:
        self.server = ModelServer(ANSWERS)
        self.link = Link(self.server)
        self.turns: list[FollowedTurn] = []
        self.link.connect()
        self.feed = self.link.session.feed()

    def do(self, action: str, first: int, second: int) -> None:
        match action:
            case "carry":
                self.link.carry(first, second)
            case "speak":
                self.server.speak(first)
            case "cut":
                self.link.cut()
            case "lag":
                self.server.lag()
            case _:
                self.ask()

    def ask(self) -> None:
        if len(self.turns) < len(ANSWERS):
            prompt = Prompt(text="go", message_id=f"m-{len(self.turns)}")
            self.turns.append(self.link.session.ask(prompt, self.link.now))

    def finish(self) -> None:
        """On a connection that holds."""
        for _ in range(1_000):
            self.link.carry(10_000, 10_000)
            if not self.server.speak(3) and self.link.is_idle and self.link.session.is_online:
                return


@settings(max_examples=150, deadline=None)
@given(actions=st.lists(ACTIONS, max_size=60))
def test_reconnects_store_every_prompt_once_and_deliver_every_delta_once(
    actions: list[tuple[str, int, int]],
) -> None:
    run = Run()
    for action in actions:
        run.do(*action)
    run.ask()
    run.finish()

    prompts = [entry for entry in run.server.entries if entry["role"] == "user"]
    assert [entry["message_id"] for entry in prompts] == [f"m-{n}" for n in range(len(run.turns))]
    for turn in run.turns:
        assert turn.is_done
        events, record, shown = drained(turn), ReceivedTurn(), ""
        for event in events:
            shown += record.apply(event)
        assert record.text == shown == run.server.turns[turn.result().turn_id].answer
        assert isinstance(events[-1], TurnFinished)
    held: dict[str, int] = {}
    for event in drained(run.feed):
        if isinstance(event, TextDelta):
            assert event.offset == held.get(event.turn_id, 0)
            held[event.turn_id] = event.offset + len(event.text)


def test_reconnect_attempts_have_growing_jittered_delays() -> None:
    link = Link(ModelServer([]))
    session = link.session
    link.connect()
    assert isinstance(session.state, Online)
    now, delays = link.now, []
    session.connection_lost(ConnectionLost("gone"), now)
    for _ in range(20):
        state = session.state
        assert isinstance(state, Reconnecting)
        delays.append(state.in_seconds)
        assert session.next_time() == now + state.in_seconds
        session.check_time(now + state.in_seconds - 0.001)
        assert not session.wants_connection
        now += state.in_seconds
        session.check_time(now)
        assert session.wants_connection
        session.open_connection()
        session.connection_lost(ConnectionLost("still gone"), now)
    assert all(0.5 <= delay <= 30.0 for delay in delays)
    assert len(set(delays[:4])) == 4, "none of them can have reached 30 s"


def test_a_closed_session_sends_nothing_and_wants_no_connection() -> None:
    link = Link(ModelServer([]))
    session = link.session
    link.connect()
    waiting = session.ask(Prompt(text="go"), link.now)
    session.close()
    assert isinstance(session.state, Offline)
    assert waiting.is_done
    assert session.data_to_send() == b""
    assert session.next_time() is None
    assert not session.wants_connection
    assert session.ask(Prompt(text="go"), link.now).is_done
