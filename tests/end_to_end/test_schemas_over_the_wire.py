"""Over the wire: a schema with a prompt, at the vendors, over a restart, and in `nplt ask`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.client.nplt_process import run_nplt
from tests.support.raw_client import (
    ATTACH,
    ENTRY,
    ERROR,
    PROMPT,
    TURN_FINISHED,
    RawClient,
)
from tests.support.server_process import ServerProcess
from tests.support.server_thread import serving
from tests.vendors import Answer, Call, emulator_in_thread, say

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
OFFLINE: dict[str, object] = {
    "providers": [{"id": "offline", "type": "offline", "words_per_second": 0}]
}
ADA = '{"name": "Ada", "age": 36}'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    running = ServerProcess(tmp_path_factory.mktemp("schemas") / "data", settings=OFFLINE).start()
    yield running
    running.kill()


@pytest.fixture
def schema_file(tmp_path: Path) -> str:
    path = tmp_path / "person.json"
    path.write_bytes(orjson.dumps(SCHEMA))
    return str(path)


def ask(server: ServerProcess, home: Path, *arguments: str) -> tuple[str, str, int]:
    done = run_nplt("ask", *arguments, home=home, server=f"nplt://127.0.0.1:{server.port}")
    return done.stdout, done.stderr, done.returncode


def test_ask_with_a_schema_prints_only_the_json(
    server: ServerProcess, tmp_path: Path, schema_file: str
) -> None:
    pretty = f"```json\n{ADA}\n```"
    assert ask(server, tmp_path, "--schema", schema_file, pretty) == (
        '{"name":"Ada","age":36}\n',
        "",
        0,
    )
    out, _, code = ask(server, tmp_path, "--schema", schema_file, "who was Ada?")
    assert (orjson.loads(out), code) == ({"name": "who was Ada?", "age": 0}, 0)


def test_ask_prints_only_the_second_answer_after_a_schema_retry(
    server: ServerProcess, tmp_path: Path, schema_file: str
) -> None:
    out, err, code = ask(server, tmp_path, "--schema", schema_file, '{"name": "Ada"}')
    assert (orjson.loads(out)["age"], code) == (0, 0)
    assert "'age' is a required property" in err
    out, err, _ = ask(server, tmp_path, "-q", "--json", "--schema", schema_file, '{"name": "Ada"}')
    printed = orjson.loads(out)
    assert orjson.loads(printed["text"]) == printed["value"]
    assert err == ""


@pytest.mark.parametrize(
    ("content", "code", "says"),
    [
        ("{", 2, "holds no JSON schema"),
        ("[]", 2, "holds no JSON schema: it is not an object"),
        ('{"type": "strin"}', 2, "this is not a JSON schema"),
        ('{"$ref": "https://example.com/s"}', 2, "nothing is fetched"),
        ('{"title": "' + "x" * 40_000 + '"}', 9, "at most 32,768 are taken"),
    ],
)
def test_a_schema_file_without_a_schema_is_refused_before_any_call(
    server: ServerProcess, tmp_path: Path, content: str, code: int, says: str
) -> None:
    path = tmp_path / "schema.json"
    path.write_text(content)
    out, err, returned = ask(server, tmp_path, "--schema", str(path), "hello")
    assert (out, returned) == ("", code)
    assert says in err


def test_a_refused_schema_names_its_field(server: ServerProcess) -> None:
    with RawClient(server.port) as client:
        client.hello()
        refused = client.request(PROMPT, {"text": "x", "options": {"schema": {"type": "strin"}}})
        assert refused.type == ERROR
        assert (refused.json["code"], refused.json["field"]) == ("malformed", "options.schema")


def test_a_schema_is_part_of_the_prompt_and_survives_a_restart(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data", settings=OFFLINE).start()
    try:
        with RawClient(server.port) as client:
            client.hello()
            first = client.request(PROMPT, {"text": "!slow 600 x"})
            waits = client.request(PROMPT, {"text": "Ada", "options": {"schema": SCHEMA}})
            session_id = first.json["session_id"]
            assert waits.json["state"] == "waiting"
        server.kill()
        server = ServerProcess(tmp_path / "data", settings=OFFLINE).start()
        with RawClient(server.port) as client:
            client.hello()
            client.request(ATTACH, {"session_id": session_id, "after_seq": 0})
            stored = (each.json["entry"] for each in client.events() if each.type == ENTRY)
            of_turn = (entry for entry in stored if entry.get("turn_id") == waits.json["turn_id"])
            prompt, answer = next(of_turn), next(of_turn)
        assert prompt["options"] == {"schema": SCHEMA}
        assert orjson.loads(answer["content"]) == {"name": "Ada", "age": 0}
    finally:
        server.kill()


def turn_of(client: RawClient, **prompt: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    client.request(PROMPT, {"text": "who?", "options": {"schema": SCHEMA}, **prompt})
    answers: list[dict[str, Any]] = []
    for event in client.events():
        if event.type == ENTRY and event.json["entry"]["kind"] == "model_output":
            answers.append(event.json["entry"])
        if event.type == TURN_FINISHED:
            return answers, event.json
    raise AssertionError("the turn did not end")


def test_every_vendor_and_a_fallback_get_the_schema_in_their_own_form(
    tmp_path: Path,
) -> None:
    def script(call: Call) -> Answer:
        return say("that was Ada" if call.number % 2 else ADA)

    (tmp_path / "key").write_text("a-key")
    (tmp_path / "key").chmod(0o600)
    with emulator_in_thread(script, key="a-key") as vendors:
        key = {"api_key_file": str(tmp_path / "key")}
        openai = {"type": "openai", "base_url": vendors.openai_url, **key}
        gone = {**openai, "base_url": "http://127.0.0.1:9/v1"}
        claude = {"type": "anthropic", "base_url": vendors.anthropic_url, **key}
        settings = {
            "providers": [
                {**openai, "id": "chat", "api": "chat", "models": ["gpt-4.1"]},
                {**openai, "id": "responses", "api": "responses", "models": ["gpt-5.2"]},
                {**claude, "id": "claude", "models": ["claude-opus-5-5"]},
                {**gone, "id": "gone", "models": ["gpt-4.1"]},
            ],
            "fallback": ["claude/claude-opus-5-5"],
        }
        with serving(tmp_path / "data", settings) as port, RawClient(port) as client:
            client.hello()
            for model in ("chat/gpt-4.1", "responses/gpt-5.2", "claude/claude-opus-5-5"):
                answers, finished = turn_of(client, model=model)
                assert finished["state"] == "completed", finished
                assert [bool(answer.get("rejected")) for answer in answers] == [True, False]
            answers, finished = turn_of(client, model="gone/gpt-4.1")
            assert (finished["state"], finished["model"]) == ("completed", "claude/claude-opus-5-5")
            assert answers[-1]["content"] == ADA
    assert vendors.rejections == []
    bodies: list[Any] = [each.body for each in vendors.received]
    assert len(bodies) == 8
    for body in bodies[:2]:
        assert body["response_format"]["json_schema"]["strict"] is True
    for body in bodies[2:4]:
        assert body["text"]["format"] == {
            "type": "json_schema",
            "name": "answer",
            "schema": SCHEMA,
            "strict": True,
        }
    for body in bodies[4:]:
        assert body["output_config"]["format"] == {"type": "json_schema", "schema": SCHEMA}


def test_an_answer_that_never_matches_the_schema_has_an_exit_code_and_a_sentence(
    tmp_path: Path, schema_file: str
) -> None:
    (tmp_path / "key").write_text("a-key")
    (tmp_path / "key").chmod(0o600)
    with emulator_in_thread(lambda call: say("that was Ada"), key="a-key") as vendors:
        box = {"id": "box", "type": "openai", "base_url": vendors.openai_url}
        provider = {**box, "api_key_file": str(tmp_path / "key"), "models": ["gpt-4.1"]}
        with serving(tmp_path / "data", {"providers": [provider]}) as port:
            asked = ("ask", "-q", "--schema", schema_file, "who?")
            server = f"nplt://127.0.0.1:{port}"
            done = run_nplt(*asked, home=tmp_path, server=server)
            assert (done.stdout, done.returncode) == ("", 6)
            assert "the model's answer does not fit the schema" in done.stderr
            printed = orjson.loads(run_nplt(*asked, "--json", home=tmp_path, server=server).stdout)
    assert printed["error"]["code"] == "schema_mismatch"
    assert len(vendors.received) == 4
