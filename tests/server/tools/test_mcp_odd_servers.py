"""MCP servers with bad manners, each a process of its own. None of them harms another, nor us."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tests.server.tools.mcp_house import (
    NEVER,
    SUPPORT,
    McpHouse,
    described,
    mcp_house,
    odd_server,
    plain,
)
from tests.support.endless_http_server import MIB, endless_server
from tests.support.tool_hosts import NoConversationHost

from nplt_protocol import JsonObject, JsonValue
from nplt_server.masking import SecretMask
from nplt_server.tools import ToolFailed
from nplt_server.tools.mcp import (
    MESSAGES_BURST_MAX,
    MESSAGES_PER_SECOND_MAX,
    PAGES_MAX,
    TOOLS_MAX,
    McpServerConfig,
    McpServers,
    RetryPauses,
)
from nplt_server.tools.mcp.child import LINE_BYTES_MAX
from nplt_server.tools.mcp.results import result_text

pytestmark = pytest.mark.slow

FLOOD_LINE_BYTES = 1_000

ODD = plain("die", "hang", "garble", "complain", "colour", "strange", "process")


async def process_of(house: McpHouse, server: str) -> int:
    output = re.search(r"by (\d+)", await house.call(f"{server}__process"))
    assert output is not None
    return int(output[1])


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def silent(name: str, *, seconds: float) -> McpServerConfig:
    """It never answers, and ends when its input does."""
    return McpServerConfig(
        name=name, command=("sh", "-c", "cat >/dev/null"), connect_seconds_max=seconds
    )


async def test_a_list_in_pages_is_read_to_its_end_and_what_is_bad_in_it_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pages: list[list[JsonValue]] = [plain("c"), [described("b"), {"name": "bad"}], plain("a", "ü")]
    async with mcp_house(odd_server("z", pages), odd_server("y", [plain("c")])) as house:
        assert house.names == ["y__c", "z__a", "z__b", "z__c", "z___-607474ca"]
        assert {tool.description.tool_class for tool in house.servers.tools} == {"network"}
    assert "the tool bad is left out: its schema is not that of an object" in caplog.text


async def test_of_too_many_tools_the_first_are_used() -> None:
    many = plain(*(f"t{number}" for number in range(TOOLS_MAX + 1)))
    async with mcp_house(odd_server("s", [many])) as house:
        assert len(house.server("s").tools) == TOOLS_MAX
        assert f"s__t{TOOLS_MAX}" not in house.names


async def test_a_list_of_too_many_pages_is_not_read_for_ever() -> None:
    pages = [plain(f"t{number}") for number in range(PAGES_MAX + 1)]
    async with mcp_house(odd_server("s", pages)) as house:
        assert len(house.server("s").tools) == PAGES_MAX


async def test_tools_of_one_name_on_two_mcp_servers_get_different_names() -> None:
    async with mcp_house(odd_server("a", [ODD]), odd_server("b", [ODD])) as house:
        assert await process_of(house, "a") != await process_of(house, "b")


async def test_an_mcp_server_that_dies_is_noticed_at_once_and_reconnects() -> None:
    async with mcp_house(odd_server("a", [ODD]), odd_server("b", [ODD])) as house:
        before = await process_of(house, "a"), await process_of(house, "b")
        names, tools = house.names, house.servers.tools
        with pytest.raises(ToolFailed, match="a is not connected; it went away during the call"):
            await house.call("a__die")
        assert await process_of(house, "b") == before[1]
        await house.until_connected("a")
        assert await process_of(house, "a") != before[0]
        assert not is_alive(before[0])
        # So no context has to be made anew.
        assert (house.names, house.servers.tools) == (names, tools)


async def test_a_call_to_a_disconnected_mcp_server_fails_with_the_reason() -> None:
    async with mcp_house(odd_server("a", [ODD]), again=NEVER) as house:
        with pytest.raises(ToolFailed):
            await house.call("a__die")
        assert house.server("a").state == "waiting"
        with pytest.raises(ToolFailed, match="a is not connected; it has closed the connection"):
            await house.call("a__process")
    assert house.server("a").state == "stopped"


async def test_a_cancelled_call_notifies_the_mcp_server_and_keeps_the_connection() -> None:
    async with mcp_house(odd_server("a", [ODD])) as house:
        process = await process_of(house, "a")
        hanging = asyncio.create_task(house.call("a__hang"))
        while "1 hanging" not in await house.call("a__process"):
            pass
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
        while "1 cancelled" not in await house.call("a__process"):
            pass
        assert await process_of(house, "a") == process


async def test_an_unresponsive_mcp_server_delays_neither_others_nor_the_shutdown() -> None:
    async with mcp_house(
        silent("quiet", seconds=3_600), odd_server("b", [ODD]), connected=False
    ) as house:
        await house.until_connected("b")
        process = await process_of(house, "b")
        assert house.server("quiet").state == "connecting"
    assert not is_alive(process)


async def test_connecting_to_an_unresponsive_mcp_server_times_out() -> None:
    async with mcp_house(silent("quiet", seconds=0.05), connected=False) as house:
        await house.until(lambda: house.server("quiet").error is not None)
        assert house.server("quiet").error == "it did not answer within 0.05 s"


async def test_the_reason_why_an_mcp_server_is_unreachable_is_reported() -> None:
    missing = McpServerConfig(name="missing", command=("/nowhere/to/be/found",))
    unreachable = McpServerConfig(name="nobody", url="http://127.0.0.1:1/mcp")
    once = RetryPauses(seconds_min=60, seconds_max=60)  # a new attempt would reset the error
    async with mcp_house(missing, unreachable, connected=False, again=once) as house:
        await house.until(lambda: all(server.error for server in house.servers.by_name.values()))
        assert house.server("missing").error == "it could not be started: No such file or directory"
        assert house.server("nobody").error == "it could not be reached (ConnectError)"
        assert house.names == []


async def test_reconnecting_to_an_mcp_server_backs_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    missing = McpServerConfig(name="missing", command=("/nowhere/to/be/found",))
    pauses = RetryPauses(seconds_min=0.001, seconds_max=0.003)

    def seen() -> list[str]:
        return [line.rpartition("again in ")[2] for line in caplog.messages]

    async with mcp_house(missing, connected=False, again=pauses) as house:
        await house.until(lambda: len(seen()) >= 4)
    assert seen()[:4] == ["0.001 s", "0.002 s", "0.003 s", "0.003 s"]


def at(port: int, **headers: str) -> McpServerConfig:
    return McpServerConfig(name="web", url=f"http://127.0.0.1:{port}/mcp", headers=headers)


@contextmanager
def web_server(port: int = 0, *, raw: str = "") -> Iterator[int]:
    """On a port of the loopback; killed in the end."""
    command = [sys.executable, "-I", "-S", str(SUPPORT / "odd_mcp_server.py")]
    tools = json.dumps([plain("process", "forget", "keys", "die", "raw")])
    with subprocess.Popen(
        [*command, str(port), tools], stdout=subprocess.PIPE, env={**os.environ, "RAW": raw}
    ) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.kill()


async def test_an_mcp_server_over_http_is_reconnected_when_it_returns() -> None:
    with web_server() as port:
        async with mcp_house(at(port)) as house:
            before = await process_of(house, "web")
            with pytest.raises(ToolFailed, match="web is not connected; it went away during"):
                await house.call("web__die")
            unreachable = "it could not be reached (ConnectError)"
            await house.until(lambda: house.server("web").error == unreachable)
            with web_server(port):
                await house.until_connected("web")
                assert await process_of(house, "web") != before


async def test_each_request_by_http_carries_the_headers_it_was_given() -> None:
    with web_server() as port:
        async with mcp_house(at(port, **{"X-Key": "sesame"})) as house:
            assert await house.call("web__keys") == '{"seen": ["sesame"]}'


async def test_an_expired_mcp_session_is_initialized_again() -> None:
    with web_server() as port:
        async with mcp_house(at(port)) as house:
            await house.call("web__forget")
            with pytest.raises(ToolFailed, match="web refused: Session terminated"):
                await house.call("web__process")
            assert "process" in await house.until_answered("web__process")


async def test_a_list_changed_notification_reloads_the_tools() -> None:
    async with mcp_house(odd_server("a", [plain("renew")], [plain("new")])) as house:
        tools = house.servers.tools
        await house.call("a__renew")
        await house.until(lambda: house.names == ["a__new"])
        assert house.servers.tools != tools


@pytest.mark.parametrize("when", ["greeted", "called"])
async def test_an_mcp_server_that_writes_an_endless_line_is_stopped_with_a_reason(
    when: str, tmp_path: Path
) -> None:
    count = tmp_path / "count"
    count.write_text("0")
    pages = [[plain("endless", "process")]] if when == "called" else []
    config = replace(odd_server("a", *pages), env={"COUNT": str(count)})
    output = f"it wrote a line of more than {LINE_BYTES_MAX:,} bytes"
    async with mcp_house(config, connected=when == "called", again=NEVER) as house:
        process = await process_of(house, "a") if when == "called" else 0
        if when == "called":
            with pytest.raises(ToolFailed, match=f"a is not connected; {output} during the call"):
                await house.call("a__endless")
        await house.until(lambda: house.server("a").state == "waiting")
        assert house.server("a").error == output
        # What is above the limit is what pipe and reader hold; the count is written after the
        # bytes that it counts.
        written = int(count.read_text())
        assert LINE_BYTES_MAX - 10_000 < written < LINE_BYTES_MAX + 1_000_000
        if when == "called":
            await house.until(lambda: not is_alive(process))
            with pytest.raises(ToolFailed, match=f"a is not connected; {output}"):
                await house.call("a__process")
        assert int(count.read_text()) < LINE_BYTES_MAX + 1_000_000


async def test_a_call_that_times_out_at_an_mcp_server_has_failed() -> None:
    config = replace(odd_server("a", [ODD]), call_seconds_max=0.05)
    async with mcp_house(config) as house:
        with pytest.raises(ToolFailed, match=r"a did not answer within 0\.05 s: hang"):
            await house.call("a__hang")
        assert house.server("a").state == "connected"


@pytest.mark.slow
async def test_a_progress_notification_restarts_the_timeout_of_a_call(tmp_path: Path) -> None:
    seconds = 5
    until = tmp_path / "until"
    config = replace(
        odd_server("a", [plain("progress")]), call_seconds_max=seconds, env={"UNTIL": str(until)}
    )
    async with mcp_house(config) as house:
        call = asyncio.create_task(house.call("a__progress"))
        await asyncio.sleep(2 * seconds)
        assert not call.done()
        until.touch()
        assert "progress by" in await call


async def test_prompts_are_listed_also_where_templates_are_unknown() -> None:
    config = replace(odd_server("a", [ODD]), env={"SOURCES": "without templates"})
    async with mcp_house(config) as house:
        kinds = [source.kind for source in house.server("a").sources]
        assert kinds == ["resource", "resource", "prompt"]


async def test_resources_and_prompts_are_listed_and_read() -> None:
    config = replace(odd_server("a", [ODD]), env={"SOURCES": "1"})
    async with mcp_house(config) as house:
        assert [(one.reference, one.kind) for one in house.server("a").sources] == [
            ("mcp:a/note://today", "resource"),
            ("mcp:a/picture://dot.png", "resource"),
            ("mcp:a/note://{day}", "template"),
            ("mcp:a/greet?whom={whom}", "prompt"),
        ]
        note = await house.servers.read("mcp:a/note://monday")
        assert (note.filename, note.content_type) == ("monday", "text/plain")
        assert note.data == b"read note://monday"
        dot = await house.servers.read("mcp:a/picture://dot.png")
        assert (dot.filename, dot.content_type) == ("dot.png", "image/png")
        assert dot.data.startswith(b"\x89PNG")
        greeting = await house.servers.read("mcp:a/greet?whom=Ada+L")
        assert greeting.data == b"user: Say hello to Ada L."
        with pytest.raises(ToolFailed, match="there is no MCP server 'b'"):
            await house.servers.read("mcp:b/note://today")


async def test_a_long_line_within_the_limit_is_read() -> None:
    async with mcp_house(odd_server("a", [plain("long")])) as house:
        assert len(await house.call("a__long")) == 3_000_000


async def test_noise_between_mcp_messages_is_ignored() -> None:
    async with mcp_house(odd_server("a", [ODD])) as house:
        assert "garble" in await house.call("a__garble")
        assert "process" in await house.call("a__process")


async def test_stderr_of_an_mcp_server_goes_to_the_debug_log(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG, "nplt_server.tools.mcp.child")
    async with mcp_house(odd_server("a", [ODD])) as house:
        await house.call("a__complain")
    output = [line for line in caplog.messages if "a line of complaint" in line]
    assert [line[:35] for line in output] == ["mcp a says: a line of complaint !!!"]
    assert len(output[0]) < 600
    assert capfd.readouterr() == ("", "")


async def test_results_of_an_mcp_server_are_cleaned() -> None:
    async with mcp_house(odd_server("a", [ODD])) as house:
        assert await house.call("a__colour") == "[31mred[0m\nnext"


async def test_a_malformed_mcp_message_fails_only_its_own_call() -> None:
    async with mcp_house(odd_server("a", [ODD])) as house:
        process = await process_of(house, "a")
        with pytest.raises(ToolFailed, match="a gave an answer that can't be read"):
            await house.call("a__strange")
        with pytest.raises(ToolFailed, match="can't be written as JSON"):
            await house.call("a__process", half="\ud83d")
        assert await process_of(house, "a") == process


async def test_without_the_mcp_sdk_the_error_names_the_missing_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "mcp"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mcp", None)
    servers = McpServers([odd_server("a", [ODD])])
    await servers.run()
    assert [(server.state, server.error) for server in servers.by_name.values()] == [
        ("stopped", "their tools need a package that is not installed: pip install 'nplt[mcp]'")
    ]


async def test_without_servers_there_is_nothing_to_run() -> None:
    await McpServers([]).run()


async def test_a_tool_of_a_stopped_mcp_server_fails_with_the_reason() -> None:
    async with mcp_house(odd_server("a", [ODD])) as house:
        tool = house.tool("a__process")
    with pytest.raises(ToolFailed, match="a is not connected"):
        await tool.run({}, NoConversationHost())


def test_content_that_is_no_text_is_described_in_brackets() -> None:
    import mcp_types as sent

    text = sent.TextResourceContents(uri="file:///a", mime_type="text/plain", text="inside")
    blob = sent.BlobResourceContents(uri="file:///b", blob="AAAA")
    result = sent.CallToolResult(
        content=[
            sent.TextContent(text="look:"),
            sent.ImageContent(data="AAA=", mime_type="image/png"),
            sent.AudioContent(data="AA==", mime_type="audio/\x1bwav"),
            sent.ResourceLink(name="there", uri="http://x/\ny"),
            sent.EmbeddedResource(resource=text),
            sent.EmbeddedResource(resource=blob),
        ]
    )
    assert result_text(result).split("\n") == [
        "look:",
        "[image/png, 2 bytes]",
        "[audio/wav, 1 bytes]",
        "[there: http://x/ y]",
        "[file:///a, text/plain]",
        "inside",
        "[file:///b, unknown type, 3 bytes]",
    ]


@pytest.mark.parametrize(
    ("texts", "data", "expected"),
    [
        ([], None, "(done; there was nothing to say)"),
        ([], {"a": [1]}, '{"a": [1]}'),
        (["two sunny days"], {"days": 2}, 'two sunny days\n{"days": 2}'),
        (['{"days":2}'], {"days": 2}, '{"days":2}'),
        (["7"], {"result": 7}, "7"),
        (["a", "b"], {"result": ["a", "b"]}, "a\nb"),
        (["ü"], {"result": "u"}, 'ü\n{"result": "u"}'),
        (["a file\n"], {"content": "a file\n"}, "a file\n"),
        (["a file"], {"files": [{"text": "a file"}]}, "a file"),
        (["a", "b"], {"texts": ["a", "b"]}, "a\nb"),
        (
            ["a file"],
            {"text": "a file", "size": 6},
            'a file\n{"text": "(see the text above)", "size": 6}',
        ),
    ],
)
def test_data_is_shown_unless_the_text_says_the_same(
    texts: list[str], data: JsonValue, expected: str
) -> None:
    import mcp_types as sent

    content: list[sent.ContentBlock] = [sent.TextContent(text=text) for text in texts]
    assert result_text(sent.CallToolResult(content=content, structured_content=data)) == expected


def test_an_mcp_result_with_is_error_is_a_failure() -> None:
    import mcp_types as sent

    with pytest.raises(ToolFailed, match="no such city"):
        result_text(
            sent.CallToolResult(content=[sent.TextContent(text="no such city")], is_error=True)
        )


@pytest.mark.parametrize("half", [r"\ud83d", r"\uDE00", r"\ud83d\ud83d\ude00", r"\\\ud83d"])
async def test_a_lone_surrogate_in_a_result_is_replaced_and_the_reply_is_not_lost(
    half: str,
) -> None:
    output = {r"\ud83d": "�", r"\uDE00": "�", r"\ud83d\ud83d\ude00": "�😀", r"\\\ud83d": "\\�"}
    config = replace(odd_server("a", [plain("raw")]), env={"RAW": half})
    async with mcp_house(config) as house:
        assert await house.call("a__raw") == f"<{output[half]}>"


@pytest.mark.parametrize(
    "raw", ['{"jsonrpc": "1.0", "id": ID, "result": {}}', '{"jsonrpc": "2.0", "id": ID}']
)
async def test_a_reply_that_is_no_message_fails_its_call_at_once(raw: str) -> None:
    config = replace(odd_server("a", [plain("raw")]), env={"RAW_LINE": raw}, call_seconds_max=600)
    async with mcp_house(config) as house:
        with pytest.raises(ToolFailed, match="a refused: its reply can't be read"):
            await house.call("a__raw")


@pytest.mark.parametrize("line", ["notification", "request", "reply", "garbage", "empty"])
async def test_a_flood_of_messages_is_read_at_a_bounded_rate(line: str, tmp_path: Path) -> None:
    count = tmp_path / "count"
    env = {"COUNT": str(count), "FLOOD": line}
    async with mcp_house(
        replace(odd_server("a", [plain("flood", "process")]), env=env), odd_server("b", [ODD])
    ) as house:
        began = asyncio.get_running_loop().time()
        flooding = asyncio.create_task(house.call("a__flood"))
        await house.until(count.exists)
        while asyncio.get_running_loop().time() - began < 2:
            await process_of(house, "b")
        written = int(count.read_text())
        elapsed = asyncio.get_running_loop().time() - began
        flooding.cancel()
    # What pipe and reader hold besides is at most 128 KiB.
    held = 128 * 1024 // FLOOD_LINE_BYTES
    assert written <= MESSAGES_BURST_MAX + MESSAGES_PER_SECOND_MAX * elapsed + held


async def test_names_descriptions_and_errors_have_no_control_and_no_bidi_characters(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "nplt_server")
    evil = "".join(map(chr, (7, 0x1B, 0x7F, 0x9B, 0x202E, 0x2066, 0x200E, 0x200F, 0x61C)))
    schema: JsonObject = {
        "type": "object",
        "title": evil,
        "description": evil,
        "properties": {"a": {"type": "string", "description": evil, "$comment": evil}},
    }
    by_name: JsonObject = {"type": "object", "properties": {f"b{evil}": {"type": "string"}}}
    page: list[JsonValue] = [
        {"name": "raw", "description": evil, "inputSchema": schema},
        {"name": f"t{evil}", "description": evil, "inputSchema": schema},
        {"name": f"n{evil}", "inputSchema": by_name},
        described(f"bad{evil}", inputSchema=[]),
        described("fail"),
        described("refuse"),
    ]
    config = replace(odd_server("a", [page]), env={"SOURCES": evil, "EVIL": evil})
    seen: list[str] = []
    async with mcp_house(config) as house:
        for tool in ("a__fail", "a__refuse"):
            with pytest.raises(ToolFailed) as failed:
                await house.call(tool)
            seen.append(str(failed.value))
        for name in house.names:
            seen.append(str(msgspec.to_builtins(house.tool(name).description)))
        seen += [f"{one.reference} {one.description}" for one in house.server("a").sources]
        seen.append(str(house.servers.described))
        assert not any("n" in name.removeprefix("a__")[:1] for name in house.names)
    shown = "\n".join((*seen, *caplog.messages)).replace("\n", "").replace("\\", " ")
    assert [hex(ord(each)) for each in shown if each in evil] == []
    assert not re.search(r" (x[0-9a-f]{2}|u[0-9a-f]{4})", shown)


async def test_a_secret_in_a_file_or_on_stderr_of_an_mcp_server_is_masked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "nplt_server.tools.mcp.child")
    secret = "ghp_0f1e2d3c4b5a69788796a5b4c3d2e1f0"
    config = replace(odd_server("a", [ODD]), env={"SOURCES": "1", "EVIL": secret})
    async with mcp_house(config, secrets=SecretMask([secret])) as house:
        note = await house.servers.read(f"mcp:a/note://{secret}")
        greeting = await house.servers.read(f"mcp:a/greet?whom={secret}")
        about = [one.description for one in house.server("a").sources]
        await house.call("a__complain")
    assert note.data == b"read note://[secret]"
    assert greeting.data == b"user: Say hello to [secret]."
    assert about[0] == "What is due[secret]."
    assert "a line of complaint [secret]!!!" in caplog.text
    assert secret not in caplog.text


@pytest.mark.parametrize("half", [r"\ud83d", r"\uDE00"])
async def test_a_lone_surrogate_from_an_mcp_server_over_http_fails_its_call_at_once(
    half: str,
) -> None:
    with web_server(raw=half) as port:
        async with mcp_house(replace(at(port), call_seconds_max=600)) as house:
            with pytest.raises(ToolFailed, match="web refused"):
                await house.call("web__raw")
            assert "process" in await house.call("web__process")


@pytest.mark.parametrize("way", ["call-body", "error-body", "call-headers", "call-gzip"])
async def test_an_endless_response_of_one_met_by_http_is_not_read_to_its_end(way: str) -> None:
    with endless_server(way) as server:
        async with mcp_house(at(server.port), connected=False, again=NEVER) as house:
            await house.until(lambda: house.server("web").error is not None)
        sent = server.sent[way]
    assert sent < 128 * MIB
