"""The tables of states: the specification shows them, and both ends obey them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.protocol.fake_link import WELCOME

from nplt_protocol import (
    ClientConnection,
    Dialect,
    ErrorCode,
    LocalProtocolError,
    MessageType,
    RequestError,
    ServerConnection,
    State,
    encode_error,
    encode_event,
    encode_frame,
    encode_plain_request,
    encode_reply,
    encode_request,
)
from nplt_protocol.connection import CLIENT_STATES, SERVER_STATES, Step, Transitions
from nplt_protocol.messages import Detach, Detached, Hello, Pong, Prompt, StatusRequest, TurnStarted

SPEC = Path(__file__).parents[2] / "protocol" / "SPEC.md"
BUSY = RequestError(ErrorCode.BUSY, "Try again later.")
STARTED = TurnStarted(session_id="s", turn_id="t", seq=1, model="offline/echo")


@pytest.mark.parametrize(("end", "table"), [("server", SERVER_STATES), ("client", CLIENT_STATES)])
def test_the_specification_shows_the_table_of_transitions(end: str, table: Transitions) -> None:
    shown = re.search(
        rf"^\| {end} \| step \| becomes \| remarks \|\n\|[-|]+\n((?:\|.*\n)+)",
        SPEC.read_text(),
        re.M,
    )
    assert shown
    rows = [tuple(map(str.strip, row.split("|")[1:4])) for row in shown[1].splitlines()]
    assert rows == [
        (state.name, step.value, follows.name)
        for state, steps in table.items()
        for step, follows in steps.items()
    ]


def server_in(state: State) -> ServerConnection:
    connection = ServerConnection()
    if state in (State.AWAITING_WELCOME, State.STRUCTURED):
        connection.receive_data(encode_request(Hello(), 1))
    if state is State.STRUCTURED:
        connection.send_welcome(1, WELCOME)
        connection.receive_data(encode_request(StatusRequest(), 7))
    if state is State.PLAIN:
        connection.receive_data(encode_plain_request(Prompt(text="hi"), 1))
    if state is State.CLOSED:
        connection.close()
    assert connection.state is state
    return connection


def client_in(state: State) -> ClientConnection:
    connection = ClientConnection(Dialect.PLAIN if state is State.PLAIN else Dialect.STRUCTURED)
    if state in (State.AWAITING_WELCOME, State.STRUCTURED):
        connection.send_hello()
        # The table allows another HELLO after the first one is answered.
        connection.receive_data(encode_error(1, BUSY))
    if state is State.STRUCTURED:
        connection.send_hello()
        connection.receive_data(encode_reply(MessageType.HELLO, 2, WELCOME))
    if state is State.CLOSED:
        connection.close()
    assert connection.state is state
    return connection


SERVER_SENDS: dict[Step, Callable[[ServerConnection], bytes]] = {
    Step.SEND_WELCOME: lambda server: server.send_welcome(1, WELCOME),
    Step.SEND_REPLY: lambda server: server.send_reply(MessageType.PING, 7, Pong()),
    Step.SEND_ERROR: lambda server: server.send_error(0, BUSY),
    Step.SEND_TEXT: lambda server: server.send_text("hello"),
    Step.SEND_THOUGHT: lambda server: server.send_thought({"type": "thinking"}),
}
CLIENT_SENDS: dict[Step, Callable[[ClientConnection], bytes]] = {
    Step.SEND_HELLO: lambda client: client.send_hello(),
    Step.SEND_REQUEST: lambda client: client.send(StatusRequest())[1],
    Step.SEND_PLAIN_REQUEST: lambda client: client.send_heartbeat(),
}
TO_SERVER = {
    Step.RECEIVE_HELLO: encode_request(Hello(), 5),
    Step.RECEIVE_REQUEST: encode_request(StatusRequest(), 6),
    Step.RECEIVE_PLAIN_REQUEST: encode_plain_request(Prompt(text="hi"), 1),
}
TO_CLIENT = {
    Step.RECEIVE_TEXT: encode_frame(MessageType.CHAT_TEXT, 0, b"hello"),
    Step.RECEIVE_ERROR: encode_error(0, BUSY),
    Step.RECEIVE_EVENT: encode_event(STARTED),
    Step.RECEIVE_THOUGHT: encode_frame(MessageType.AGENT_THOUGHT, 0, b'{"type":"thinking"}'),
}


@pytest.mark.parametrize("step", SERVER_SENDS)
@pytest.mark.parametrize("state", SERVER_STATES)
def test_a_server_sends_what_its_state_lists_and_nothing_else(state: State, step: Step) -> None:
    server = server_in(state)
    follows = SERVER_STATES[state].get(step)
    if follows is None:
        with pytest.raises(LocalProtocolError, match=f"can't be sent while {state.name}"):
            SERVER_SENDS[step](server)
        assert server.state is state
    else:
        assert SERVER_SENDS[step](server)
        assert server.state is follows


@pytest.mark.parametrize(
    ("state", "step"),
    [
        (state, step)
        for state in CLIENT_STATES
        for step in CLIENT_SENDS
        # `send` makes a request of the plain dialect there.
        if (state, step) != (State.PLAIN, Step.SEND_REQUEST)
    ],
)
def test_a_client_sends_what_its_state_lists_and_nothing_else(state: State, step: Step) -> None:
    client = client_in(state)
    follows = CLIENT_STATES[state].get(step)
    if follows is None:
        with pytest.raises(LocalProtocolError, match=f"can't be sent while {state.name}"):
            CLIENT_SENDS[step](client)
        assert client.state is state
    else:
        assert CLIENT_SENDS[step](client)
        assert client.state is follows


@pytest.mark.parametrize("step", TO_SERVER)
@pytest.mark.parametrize("state", SERVER_STATES)
def test_a_request_leads_a_server_to_the_state_that_the_table_gives(
    state: State, step: Step
) -> None:
    server = server_in(state)
    if state is State.AWAITING_WELCOME and step is Step.RECEIVE_HELLO:
        server.send_error(1, BUSY)
    server.receive_data(TO_SERVER[step])
    assert server.state is SERVER_STATES[state].get(step, state)


@pytest.mark.parametrize("state", CLIENT_STATES)
def test_a_client_receives_what_its_state_lists_and_drops_the_rest(state: State) -> None:
    for step, data in TO_CLIENT.items():
        if (state, step) != (State.STRUCTURED, Step.RECEIVE_THOUGHT):  # an event there
            received = client_in(state).receive_data(data)
            assert bool(received) == (step in CLIENT_STATES[state]), step


@pytest.mark.parametrize("state", SERVER_STATES)
def test_a_ping_gets_a_pong_where_the_server_lists_it(state: State) -> None:
    server = server_in(state)
    server.receive_data(encode_frame(MessageType.PING, 9, b"now"))
    assert bool(server.data_to_send()) == (Step.REPLY_TO_PING in SERVER_STATES[state])


@pytest.mark.parametrize("state", CLIENT_STATES)
def test_a_ping_gets_a_pong_where_the_client_lists_it(state: State) -> None:
    client = client_in(state)
    client.receive_data(encode_frame(MessageType.PING, 9, b"now"))
    assert bool(client.data_to_send()) == (Step.REPLY_TO_PING in CLIENT_STATES[state])


def test_every_step_of_the_state_tables_is_tested_here() -> None:
    """A server's events are encoded outside its connection."""
    tried = {*SERVER_SENDS, *CLIENT_SENDS, *TO_SERVER, *TO_CLIENT, Step.REPLY_TO_PING}
    assert set(Step) - tried == {Step.SEND_EVENT, Step.RECEIVE_REPLY, Step.RECEIVE_WELCOME}


def test_welcome_makes_an_awaiting_client_structured() -> None:
    client = client_in(State.AWAITING_WELCOME)
    client.send_hello()
    client.receive_data(encode_reply(MessageType.HELLO, 2, WELCOME))
    assert client.state is CLIENT_STATES[State.AWAITING_WELCOME][Step.RECEIVE_WELCOME]


def test_a_client_receives_a_reply_where_its_state_lists_it() -> None:
    for state in (State.AWAITING_WELCOME, State.STRUCTURED):
        client = client_in(state)
        seq, _ = client.send(Detach())
        received = client.receive_data(encode_reply(MessageType.DETACH, seq, Detached()))
        assert bool(received) == (Step.RECEIVE_REPLY in CLIENT_STATES[state])
