"""Client scenarios against a scripted server, run with the asynchronous and the blocking client."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.client.clients_under_test import OpenClient, open_asynchronous, open_blocking
from tests.client.scripted_peer import (
    MODEL,
    SESSION,
    Talk,
    attaches,
    delta,
    entry,
    finished,
    receipt,
    scripted_peer,
    started,
)
from tests.support.faulty_network import FaultyNetwork, open_road
from tests.support.ports import free_port

from nplt_client.errors import (
    AuthenticationFailed,
    CannotConnect,
    ConnectionLost,
    LimitExceeded,
    NpltError,
    ProtocolViolation,
    RequestRefused,
    TimedOut,
)
from nplt_client.wire.reconnect_policy import Patience
from nplt_protocol.codec import encode_reply
from nplt_protocol.codes import ErrorCode, MessageType
from nplt_protocol.frames import encode_frame
from nplt_protocol.json_text import JsonObject
from nplt_protocol.messages import (
    ActiveTurn,
    Attach,
    Cancel,
    Cancelled,
    EntryAdded,
    Hello,
    HistoryPage,
    HistoryRequest,
    PageEdges,
    Prompt,
    SessionEvent,
    SessionNew,
    Status,
    StatusRequest,
    Welcome,
)

SOON = Patience(first_seconds=0.001, most_seconds=0.01)
RUNNING = ActiveTurn(turn_id="turn-1", call=0, offset=0, model=MODEL)
STATUS = Status(server="s", uptime=1.0, connections=1, conversations={}, turns={}, storage={})
WELCOME = encode_reply(
    MessageType.HELLO,
    1,
    Welcome(
        version=3,
        server="nplt/0.1.0",
        user="local",
        session_id=SESSION,
        model=MODEL,
        models=(MODEL,),
        limits={},
    ),
)


@pytest.fixture(params=[open_asynchronous, open_blocking], ids=["asynchronous", "blocking"])
def open_client(request: pytest.FixtureRequest) -> OpenClient:
    chosen: OpenClient = request.param
    return chosen


def goes_in_mid_answer(talk: Talk) -> None:
    talk.welcome()
    talk.take_prompt(events=(started(), delta("half an ", 0)))


def goes_on(talk: Talk) -> None:
    talk.welcome(session_id="f" * 32)
    place = attaches(talk, running=RUNNING)
    assert place == Attach(session_id=SESSION, after_seq=0, turn_id="turn-1", call=0, offset=8)
    talk.say(delta("answer", 8), entry("half an answer"), finished())
    talk.wait_until_gone()


def history(*messages: JsonObject, after: int = 1) -> HistoryPage:
    edges = PageEdges(has_more_before=True, has_more_after=False, before=1, after=after)
    return HistoryPage(
        session_id=SESSION, name="n", message_count=1, head_seq=1, messages=messages, page=edges
    )


def stored_answer(text: str, *, seq: int = 2, state: str = "completed") -> EntryAdded:
    event = entry(text, seq=seq)
    assert isinstance(event, EntryAdded)
    event.entry.update(kind="model_output", call=0, state=state, usage={"output_tokens": 3})
    return event


# Being welcomed


def says_nothing(talk: Talk) -> None:
    pass


def greets_and_goes(talk: Talk) -> None:
    talk.greet("too many connections")


def dies_inside_welcome(talk: Talk) -> None:
    talk.greet()
    talk.expect(Hello)
    talk.send(WELCOME[: len(WELCOME) // 2])


@pytest.mark.parametrize("script", [says_nothing, greets_and_goes, dies_inside_welcome])
def test_a_server_that_closes_before_welcome_is_cannot_connect(
    open_client: OpenClient, script: Callable[[Talk], None]
) -> None:
    with scripted_peer(script) as peer, pytest.raises(CannotConnect), open_client(peer.url):
        pass


def test_the_last_text_before_the_close_is_the_reason_of_the_error(open_client: OpenClient) -> None:
    with (
        scripted_peer(greets_and_goes) as peer,
        pytest.raises(CannotConnect, match="too many connections"),
        open_client(peer.url),
    ):
        pass


def test_a_closed_port_is_cannot_connect(open_client: OpenClient) -> None:
    url = f"nplt://127.0.0.1:{free_port()}"
    with pytest.raises(CannotConnect) as caught, open_client(url):
        pass
    assert caught.value.nothing_listens


@pytest.mark.parametrize(
    "reply_json",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n" + b"." * 70_000, b"220 mail ESMTP\r\n" * 5_000],
)
def test_a_server_of_another_protocol_is_refused(
    open_client: OpenClient, reply_json: bytes
) -> None:
    with (
        scripted_peer(lambda talk: talk.send(reply_json)) as peer,
        pytest.raises((CannotConnect, ProtocolViolation)),
        open_client(peer.url),
    ):
        pass


def test_a_version_that_was_not_offered_is_a_protocol_violation(open_client: OpenClient) -> None:
    def speaks_another_version(talk: Talk) -> None:
        talk.welcome(version=9)
        talk.wait_until_gone()

    with (
        scripted_peer(speaks_another_version) as peer,
        pytest.raises(ProtocolViolation, match="version 9"),
        open_client(peer.url),
    ):
        pass


def test_a_missing_welcome_is_a_timeout(open_client: OpenClient) -> None:
    def script(talk: Talk) -> None:
        talk.greet()
        talk.wait_until_gone()

    with (
        scripted_peer(script) as peer,
        pytest.raises(TimedOut, match="within 1 s"),
        open_client(peer.url, timeout=1.0),
    ):
        pass


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (ErrorCode.UNAUTHORIZED, AuthenticationFailed),
        (ErrorCode.UNSUPPORTED, ProtocolViolation),
        (ErrorCode.UNAVAILABLE, CannotConnect),
    ],
)
def test_a_refused_hello_raises_the_error_of_its_code(
    open_client: OpenClient, code: ErrorCode, error: type[NpltError]
) -> None:
    def script(talk: Talk) -> None:
        talk.greet()
        talk.refuse(talk.expect(Hello)[0], code, "not you")

    with (
        scripted_peer(script) as peer,
        pytest.raises(error, match="not you"),
        open_client(peer.url),
    ):
        pass


# Requests and turns on one connection


@pytest.mark.parametrize("piece_bytes", [None, 1])
def test_events_that_arrive_with_the_receipt_belong_to_the_turn(
    open_client: OpenClient, piece_bytes: int | None
) -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        talk.answer("one ", "two")
        talk.wait_until_gone()

    with (
        scripted_peer(script, piece_bytes=piece_bytes) as peer,
        open_client(peer.url) as client,
    ):
        answer = client.ask("go")
    assert (answer.pieces, answer.text) == (["one ", "two"], "one two")


def test_a_long_prompt_goes_out_in_fragments_and_arrives_whole(open_client: OpenClient) -> None:
    text = "long " * 100_000

    def script(talk: Talk) -> None:
        talk.welcome()
        assert talk.answer("got it").text == text
        talk.wait_until_gone()

    with scripted_peer(script) as peer, open_client(peer.url) as client:
        assert client.ask(text).text == "got it"


def test_a_prompt_over_the_servers_limit_is_not_sent(open_client: OpenClient) -> None:
    def script(talk: Talk) -> None:
        talk.welcome(limits={"message_bytes_max": 100_000})
        talk.answer("fine")
        talk.wait_until_gone()

    with scripted_peer(script) as peer, open_client(peer.url) as client:
        with pytest.raises(LimitExceeded):
            client.ask("x" * 100_001)
        assert client.ask("x" * 90_000).text == "fine"


def test_a_prompt_that_cannot_be_encoded_is_refused_before_it_is_sent(
    open_client: OpenClient,
) -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        talk.wait_until_gone()

    with (
        scripted_peer(script) as peer,
        open_client(peer.url) as client,
        pytest.raises(RequestRefused),
    ):
        client.ask("lone \ud800 surrogate")


def test_a_refused_prompt_raises_its_reason_and_field(open_client: OpenClient) -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        talk.refuse(talk.expect(Prompt)[0], ErrorCode.NOT_FOUND, "no such model", field="model")
        talk.wait_until_gone()

    with scripted_peer(script) as peer, open_client(peer.url) as client:
        with pytest.raises(RequestRefused, match="no such model") as caught:
            client.ask("go")
        assert (caught.value.code, caught.value.field) == ("not_found", "model")


def test_a_servers_ping_gets_a_pong(open_client: OpenClient) -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        talk.expect(StatusRequest)
        talk.send(encode_frame(MessageType.PING, 0, b"?"))
        assert talk.wire.recv(1024) == encode_frame(MessageType.PONG, 0, b"?")

    with (
        scripted_peer(script) as peer,
        open_client(peer.url) as client,
        pytest.raises(ConnectionLost),
    ):
        client.status()


@pytest.mark.parametrize("reply_json", [b"not json", b"{}"])
def test_a_malformed_reply_is_a_protocol_violation(
    open_client: OpenClient, reply_json: bytes
) -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        talk.send(encode_frame(MessageType.CANCEL, talk.next_request().seq, reply_json))
        talk.wait_until_gone()

    with (
        scripted_peer(script) as peer,
        open_client(peer.url) as client,
        pytest.raises(ProtocolViolation),
    ):
        client.status()


@pytest.mark.slow
def test_a_missing_reply_is_a_timeout(open_client: OpenClient) -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        talk.wait_until_gone()

    with (
        scripted_peer(script) as peer,
        open_client(peer.url, timeout=5.0) as client,
        pytest.raises(TimedOut, match="within 5 s"),
    ):
        client.status()


@pytest.mark.parametrize("kept_bytes", [0, 1, 4, 5, 20])
def test_a_truncated_reply_is_connection_lost(open_client: OpenClient, kept_bytes: int) -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        seq, _ = talk.expect(Cancel)
        reply = talk.connection.send_reply(MessageType.CANCEL, seq, Cancelled(cancelled=True))
        talk.send(reply[:kept_bytes])

    with (
        scripted_peer(script) as peer,
        open_client(peer.url) as client,
        pytest.raises(ConnectionLost),
    ):
        client.cancel()


def test_a_connection_reset_is_connection_lost(open_client: OpenClient) -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        talk.next_request()
        talk.reset()

    with (
        scripted_peer(script) as peer,
        open_client(peer.url) as client,
        pytest.raises(ConnectionLost),
    ):
        client.status()


def test_a_silent_server_is_sent_a_ping_and_then_connection_lost(open_client: OpenClient) -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        talk.take_prompt(events=(started(),))
        assert talk.wire.recv(1) == bytes([MessageType.PING])
        while talk.wire.recv(65536):  # reads, and says nothing
            pass

    with (
        scripted_peer(script) as peer,
        # Not the deadline ends it, which would come long after the limit of any test.
        open_client(peer.url, silence_seconds=0.5, timeout=10_000) as client,
        pytest.raises(ConnectionLost, match="does not reply"),
    ):
        client.ask("hello?")


def test_a_truncated_entry_is_completed_from_the_record(open_client: OpenClient) -> None:
    cut = stored_answer("a lo")
    cut.entry.update(truncated=True, size=13)
    whole = stored_answer("a long answer")

    def script(talk: Talk) -> None:
        talk.welcome()
        talk.take_prompt(events=(started(), cut, finished()))
        seq, _ = talk.expect(HistoryRequest)
        talk.reply(MessageType.HISTORY_REQUEST, seq, history({**whole.entry, "turn_id": "turn-1"}))
        talk.wait_until_gone()

    with scripted_peer(script) as peer, open_client(peer.url) as client:
        assert client.ask("go").text == "a long answer"


def test_a_duplicate_prompt_whose_turn_is_over_is_replayed_from_the_record(
    open_client: OpenClient,
) -> None:
    stored = {**stored_answer("as before", seq=8).entry, "turn_id": "turn-1"}

    def script(talk: Talk) -> None:
        talk.welcome()
        seq, prompt = talk.expect(Prompt)
        again = receipt(prompt, state="completed", duplicate=True, seq=7)
        talk.reply(MessageType.PROMPT, seq, again)
        seq, request = talk.expect(HistoryRequest)
        assert request.after == 7
        talk.reply(MessageType.HISTORY_REQUEST, seq, history(stored, after=8))
        talk.wait_until_gone()

    with scripted_peer(script) as peer, open_client(peer.url) as client:
        answer = client.ask("hi", message_id="known")
    assert answer.text == "as before"
    assert answer.finished is not None
    assert answer.finished.state == "completed"


# Over several connections


def test_a_running_answer_resumes_at_the_cursor(open_client: OpenClient) -> None:
    with (
        scripted_peer(goes_in_mid_answer, goes_on) as peer,
        open_client(peer.url, patience=SOON) as client,
    ):
        answer = client.ask("go")
    assert (answer.pieces, answer.text) == (["half an ", "answer"], "half an answer")


def test_without_reconnecting_a_lost_connection_ends_the_turn(open_client: OpenClient) -> None:
    with (
        scripted_peer(goes_in_mid_answer) as peer,
        open_client(peer.url) as client,
        pytest.raises(ConnectionLost),
    ):
        client.ask("go")


def test_a_turn_that_ended_during_a_reconnect_is_finished_by_its_entry(
    open_client: OpenClient,
) -> None:
    def has_it_all(talk: Talk) -> None:
        talk.welcome()
        stored = stored_answer("half an answer was", state="interrupted")
        attaches(talk, head_seq=2, replay=(stored,))
        talk.wait_until_gone()

    with (
        scripted_peer(goes_in_mid_answer, has_it_all) as peer,
        open_client(peer.url, patience=SOON) as client,
    ):
        answer = client.ask("go")
    assert answer.text == "half an answer was"
    assert answer.finished is not None
    assert answer.finished.state == "interrupted"
    assert answer.finished.usage == {"output_tokens": 3}


def test_an_answer_that_is_not_replayed_is_read_from_the_record(open_client: OpenClient) -> None:
    stored = {**stored_answer("half an answer").entry, "turn_id": "turn-1"}

    def was_restored(talk: Talk) -> None:
        talk.welcome()
        attaches(talk, head_seq=2, resync=True)
        seq, _ = talk.expect(HistoryRequest)
        talk.reply(MessageType.HISTORY_REQUEST, seq, history(stored))
        talk.wait_until_gone()

    with (
        scripted_peer(goes_in_mid_answer, was_restored) as peer,
        open_client(peer.url, patience=SOON) as client,
    ):
        assert client.ask("go").text == "half an answer"


def test_text_replayed_from_the_start_replaces_the_held_text(open_client: OpenClient) -> None:
    def starts_again(talk: Talk) -> None:
        talk.welcome()
        attaches(talk, running=RUNNING)
        again = delta("HALF AN ANS", 0, replay_from=0)
        talk.say(again, delta("WER", 11), finished())
        talk.wait_until_gone()

    with (
        scripted_peer(goes_in_mid_answer, starts_again) as peer,
        open_client(peer.url, patience=SOON) as client,
    ):
        answer = client.ask("go")
    assert answer.text == "HALF AN ANSWER"


def test_a_prompt_without_a_receipt_is_sent_again_with_the_same_message_id(
    open_client: OpenClient,
) -> None:
    prompts: list[Prompt] = []

    def takes_it_and_goes(talk: Talk) -> None:
        talk.welcome()
        prompts.append(talk.expect(Prompt)[1])

    def knew_it(talk: Talk) -> None:
        talk.welcome(session_id="f" * 32)
        attaches(talk, running=RUNNING, head_seq=1)
        stored = entry("go", role="user", seq=1)
        assert isinstance(stored, EntryAdded)
        stored.entry["message_id"] = prompts[0].message_id
        talk.say(stored, delta("an ", 0))
        seq, again = talk.expect(Prompt)
        prompts.append(again)
        talk.reply(MessageType.PROMPT, seq, receipt(again, duplicate=True))
        seq, _ = talk.expect(HistoryRequest)  # what was sent before it was followed
        talk.reply(MessageType.HISTORY_REQUEST, seq, history())
        talk.say(delta("answer", 3), entry("an answer"), finished())
        talk.wait_until_gone()

    with (
        scripted_peer(takes_it_and_goes, knew_it) as peer,
        open_client(peer.url, patience=SOON) as client,
    ):
        answer = client.ask("go")
    assert answer.pieces == ["an ", "answer"], "also what was sent before the receipt"
    assert prompts[0].message_id
    assert prompts[0] == prompts[1]


def test_a_prompt_stored_just_after_attach_does_not_count_as_ended(
    open_client: OpenClient,
) -> None:
    prompts: list[Prompt] = []

    def takes_it_and_goes(talk: Talk) -> None:
        talk.welcome()
        prompts.append(talk.expect(Prompt)[1])

    def stores_it_now(talk: Talk) -> None:
        talk.welcome(session_id="f" * 32)
        stored = entry("go", role="user", seq=1)
        assert isinstance(stored, EntryAdded)
        stored.entry["message_id"] = prompts[0].message_id
        attaches(talk, head_seq=0, replay=(stored,))  # the reply was made before it
        seq, again = talk.expect(Prompt)
        talk.reply(MessageType.PROMPT, seq, receipt(again, duplicate=True))
        seq, _ = talk.expect(HistoryRequest)
        talk.reply(MessageType.HISTORY_REQUEST, seq, history())
        talk.say(delta("an answer", 0), entry("an answer"), finished())
        talk.wait_until_gone()

    with (
        scripted_peer(takes_it_and_goes, stores_it_now) as peer,
        open_client(peer.url, patience=SOON) as client,
    ):
        assert client.ask("go").text == "an answer"


def test_a_prompt_for_a_never_stored_conversation_moves_to_the_new_one(
    open_client: OpenClient,
) -> None:
    def takes_it_and_goes(talk: Talk) -> None:
        talk.welcome()
        talk.expect(Prompt)

    def knows_nothing(talk: Talk) -> None:
        talk.welcome(session_id="f" * 32)
        talk.refuse(talk.expect(Attach)[0], ErrorCode.NOT_FOUND, "no such conversation")
        seq, prompt = talk.expect(Prompt)
        talk.reply(MessageType.PROMPT, seq, receipt(prompt, session_id="f" * 32))
        talk.say(finished(session_id="f" * 32))
        talk.wait_until_gone()

    with (
        scripted_peer(takes_it_and_goes, knows_nothing) as peer,
        open_client(peer.url, patience=SOON) as client,
    ):
        assert client.ask("go").finished is not None
        assert client.session_id == "f" * 32


def replies_to_status(talk: Talk) -> None:
    talk.welcome()
    attaches(talk)
    talk.reply(MessageType.STATUS, talk.expect(StatusRequest)[0], STATUS)
    talk.wait_until_gone()


def test_an_idempotent_request_is_repeated_after_a_reconnect(open_client: OpenClient) -> None:
    def goes(talk: Talk) -> None:
        talk.welcome()
        talk.expect(StatusRequest)

    with (
        scripted_peer(goes, replies_to_status) as peer,
        open_client(peer.url, patience=SOON) as client,
    ):
        assert client.status() == STATUS


def test_a_request_that_is_not_idempotent_is_not_repeated(open_client: OpenClient) -> None:
    def goes(talk: Talk) -> None:
        talk.welcome()
        talk.expect(SessionNew)

    with (
        scripted_peer(goes) as peer,
        open_client(peer.url, patience=SOON) as client,
        pytest.raises(ConnectionLost, match="not known"),
    ):
        client.new()


def test_a_request_refused_with_shutting_down_is_repeated_at_the_next_server(
    open_client: OpenClient,
) -> None:
    def shuts_down(talk: Talk) -> None:
        talk.welcome()
        talk.refuse(talk.expect(StatusRequest)[0], ErrorCode.SHUTTING_DOWN, "going down")

    with (
        scripted_peer(shuts_down, replies_to_status) as peer,
        open_client(peer.url, patience=SOON) as client,
    ):
        assert client.status() == STATUS


def test_a_client_that_lagged_attaches_again_and_resumes(open_client: OpenClient) -> None:
    def script(talk: Talk) -> None:
        goes_in_mid_answer(talk)
        talk.say(SessionEvent(session_id=SESSION, event="lagged", details={"head_seq": 1}))
        assert attaches(talk, running=RUNNING).offset == 8
        talk.say(delta("answer", 8), entry("half an answer"), finished())
        talk.wait_until_gone()

    with scripted_peer(script) as peer, open_client(peer.url) as client:
        assert client.ask("go").pieces == ["half an ", "answer"]


def test_a_deleted_conversation_ends_its_turn(open_client: OpenClient) -> None:
    def has_deleted_it(talk: Talk) -> None:
        talk.welcome(session_id="f" * 32)
        talk.refuse(talk.expect(Attach)[0], ErrorCode.NOT_FOUND, "no such conversation")
        talk.wait_until_gone()

    with (
        scripted_peer(goes_in_mid_answer, has_deleted_it) as peer,
        open_client(peer.url, patience=SOON) as client,
    ):
        with pytest.raises(RequestRefused, match="no such conversation"):
            client.ask("go")
        assert client.session_id == "f" * 32


@pytest.mark.parametrize("code", [ErrorCode.UNAUTHORIZED, ErrorCode.UNSUPPORTED])
def test_a_refused_hello_at_a_reconnect_is_final(open_client: OpenClient, code: ErrorCode) -> None:
    def refuses(talk: Talk) -> None:
        talk.greet()
        talk.refuse(talk.expect(Hello)[0], code, "not you")

    with (
        scripted_peer(goes_in_mid_answer, refuses) as peer,
        open_client(peer.url, patience=SOON) as client,
    ):
        with pytest.raises(NpltError, match="not you") as caught:
            client.ask("go")
        with pytest.raises(NpltError, match="not you"):
            client.status()
    assert isinstance(caught.value, AuthenticationFailed) is (code is ErrorCode.UNAUTHORIZED)


def test_a_silent_connection_is_dropped_and_reconnected(open_client: OpenClient) -> None:
    def falls_silent(talk: Talk) -> None:
        goes_in_mid_answer(talk)
        while talk.wire.recv(65_536):
            pass

    with (
        scripted_peer(falls_silent, goes_on) as peer,
        open_client(peer.url, patience=SOON, silence_seconds=0.5) as client,
    ):
        assert client.ask("go").text == "half an answer"


def test_reconnecting_gives_up_after_give_up_seconds(open_client: OpenClient) -> None:
    roads: list[FaultyNetwork] = []

    def goes_for_good(talk: Talk) -> None:
        goes_in_mid_answer(talk)
        roads[0].target = free_port()

    patience = Patience(first_seconds=0.001, most_seconds=0.01, give_up_seconds=0.05)
    with scripted_peer(goes_for_good) as peer, open_road(peer.port) as road:
        roads.append(road)
        with (
            open_client(road.url, patience=patience) as client,
            pytest.raises(ConnectionLost, match="given up"),
        ):
            client.ask("go")
