"""Every call gets one result that the model can read, whatever its tool does."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime

import anyio
import pytest
from anyio.lowlevel import checkpoint
from tests.support.tool_hosts import NoConversationHost, RecordingTurn

from nplt_protocol import JsonObject
from nplt_server.masking import SecretMask
from nplt_server.tools import Tool, ToolDescription, ToolFailed, ToolHost, typed
from nplt_server.tools import executor as attempt
from nplt_server.tools.executor import ToolExecutor, bounded
from nplt_server.tools.typed import typed_tool
from nplt_storage.entries import ToolCallRequest, ToolCallResult

Run = Callable[[JsonObject, ToolHost], Awaitable[str]]


def tool(name: str, run: Run) -> Tool:
    description = ToolDescription(name=name, description="For a test.", parameters={})
    return Tool(description=description, run=run)


def giving(text: object) -> Run:
    async def run(arguments: JsonObject, host: ToolHost) -> str:
        return text  # type: ignore[return-value]

    return run


def raising(error: BaseException) -> Run:
    async def run(arguments: JsonObject, host: ToolHost) -> str:
        raise error

    return run


async def wait_for_ever(arguments: JsonObject, host: ToolHost) -> str:
    await anyio.sleep_forever()
    return "never"


def call(name: str, number: int = 0, arguments: JsonObject | None = None) -> ToolCallRequest:
    return ToolCallRequest(
        tool_call_id=f"call{number}",
        tool_name=name,
        raw_arguments="{}",
        arguments={} if arguments is None else arguments,
    )


def executor_of(*tools: Tool, seconds_max: float = 30.0, at_once_max: int = 4) -> ToolExecutor:
    return ToolExecutor(
        tools,
        clock=lambda: datetime(2026, 1, 1, tzinfo=UTC),
        seconds_max=seconds_max,
        at_once_max=at_once_max,
    )


async def results_of(
    tools: ToolExecutor, *calls: ToolCallRequest, host: ToolHost | None = None
) -> list[ToolCallResult]:
    turn = RecordingTurn(host)
    await tools.run_all(calls, turn)
    return turn.results


async def result_of(run: Run, *, seconds_max: float = 30.0) -> ToolCallResult:
    (result,) = await results_of(executor_of(tool("it", run), seconds_max=seconds_max), call("it"))
    return result


@pytest.fixture
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt, "GRACE_SECONDS", 0.0)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Threads that wait for it are let go when the test is over."""
    gate = threading.Event()
    yield gate
    gate.set()


async def test_the_text_that_a_tool_returns_is_its_result() -> None:
    result = await result_of(giving("nine"))
    assert (result.status, result.result, result.tool_call_id) == ("success", "nine", "call0")
    assert result.duration >= 0


async def test_an_unknown_tool_is_an_error_with_the_nearest_name() -> None:
    (result,) = await results_of(executor_of(tool("sys_monitor", giving(""))), call("sysmonitor"))
    assert result.status == "failed"
    assert result.result == "there is no tool 'sysmonitor'; did you mean sys_monitor?"


async def test_a_very_long_unknown_tool_name_is_shortened_in_the_error() -> None:
    (result,) = await results_of(executor_of(tool("it", giving(""))), call("x" * 1_000_000))
    assert len(result.result) < 200


async def test_arguments_that_are_no_json_object_are_a_failed_result() -> None:
    broken = ToolCallRequest(
        tool_call_id="a",
        tool_name="it",
        raw_arguments="{",
        arguments=None,
        parse_error="it ends too early",
    )
    (result,) = await results_of(executor_of(tool("it", giving(""))), broken)
    assert (result.status, result.result) == ("failed", "it ends too early")


@pytest.mark.parametrize(
    ("error", "error_text"),
    [
        (ToolFailed("there is no such city"), "there is no such city"),
        (KeyError("Lyon"), "it failed: KeyError: 'Lyon'"),
        (ValueError("two\nlines"), "it failed: ValueError: two\nlines"),
        (TimeoutError(), "it failed: TimeoutError"),
        (SystemExit(3), "it failed: SystemExit: 3"),
        (KeyboardInterrupt(), "it failed: KeyboardInterrupt"),
        (GeneratorExit(), "it failed: GeneratorExit"),
        (
            BaseExceptionGroup("both", [SystemExit(), ExceptionGroup("", [ToolFailed("no room")])]),
            "it failed: SystemExit, no room",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_whatever_a_tool_raises_becomes_a_result(
    error: BaseException, error_text: str
) -> None:
    result = await result_of(raising(error))
    assert (result.status, result.result) == ("failed", error_text)


async def test_a_known_key_in_the_message_of_a_tools_exception_is_masked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    key = "sk-12345678901234567890"
    tools = ToolExecutor(
        [tool("it", raising(ValueError("x" * 990 + key)))],
        clock=lambda: datetime(2026, 1, 1, tzinfo=UTC),
        secrets=SecretMask([key]),
    )
    (result,) = await results_of(tools, call("it"))
    assert "sk-1" not in result.result, "also where the message is cut in the middle of it"
    assert "[secret]" in result.result
    assert "sk-1" not in caplog.text


async def test_a_long_message_of_a_tools_exception_is_cut() -> None:
    result = await result_of(raising(ValueError("x" * 1_000_000)))
    assert len(result.result) < 1_100
    assert result.result.endswith("x…")


async def test_an_exception_that_can_not_be_made_text_is_named_by_its_class() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert (await result_of(raising(Odd()))).result == "it failed: Odd"


async def test_the_stack_of_a_tools_exception_is_only_in_the_debug_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    await result_of(raising(ValueError("no such city")))
    stacks = [each for each in caplog.records if "Traceback" in each.getMessage()]
    assert [each.levelname for each in stacks] == ["DEBUG"]
    assert "it failed: ValueError: no such city" in caplog.text


async def test_a_tool_that_cancels_itself_has_failed() -> None:
    result = await result_of(raising(asyncio.CancelledError()))
    assert result.status == "failed"
    assert "cancelled itself" in result.result


@pytest.mark.parametrize("value", [None, b"bytes", 5])
async def test_what_is_not_text_has_failed(value: object) -> None:
    result = await result_of(giving(value))
    assert result.status == "failed"
    assert type(value).__name__ in result.result


async def test_half_a_character_is_replaced_so_that_it_can_be_written_down() -> None:
    assert (await result_of(giving("a\ud800b"))).result == "a\ufffdb"


async def test_a_tool_that_times_out_is_stopped() -> None:
    result = await result_of(wait_for_ever, seconds_max=0.001)
    assert result.status == "failed"
    assert result.result == "it did not finish within 0.001 s"
    assert result.duration > 0


@pytest.mark.usefixtures("no_grace")
async def test_a_tool_that_ignores_its_cancellation_does_not_block_the_turn() -> None:
    let_go = anyio.Event()

    async def stubborn(arguments: JsonObject, host: ToolHost) -> str:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        return "at last"

    result = await result_of(stubborn, seconds_max=0.001)
    assert result.result == "it did not finish within 0.001 s"
    let_go.set()
    while any(task.get_name() == "tool it" for task in asyncio.all_tasks()):
        await checkpoint()


async def test_a_tool_that_finished_despite_a_cancel_is_reported_as_done() -> None:
    async def thorough(arguments: JsonObject, host: ToolHost) -> str:
        try:
            await anyio.sleep_forever()
        except asyncio.CancelledError:
            return "written"
        return ""

    result = await result_of(thorough, seconds_max=0.001)
    assert (result.status, result.result) == ("success", "written")


@pytest.mark.usefixtures("no_grace")
async def test_a_thread_that_hangs_does_not_block_the_turn(gate: threading.Event) -> None:
    def hang() -> str:
        """Waits for something."""
        gate.wait()
        return "at last"

    (result,) = await results_of(executor_of(typed_tool(hang), seconds_max=0.001), call("hang"))
    assert result.result == "hang did not finish within 0.001 s"


async def test_threads_that_hang_are_bounded_and_make_room_when_they_end(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(typed, "THREADS_MAX", 2)
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    others = {*threading.enumerate()}
    first, second, third = (asyncio.create_task(typed.run_in_thread(gate.wait)) for _ in range(3))
    for _ in range(10):
        await checkpoint()
    first.cancel()
    second.cancel()
    await asyncio.wait({first, second})
    for _ in range(10):
        await checkpoint()
    assert [one.name for one in {*threading.enumerate()} - others] == ["tool", "tool"]
    assert not third.done()
    gate.set()
    assert await third
    assert complaints == []


async def test_what_a_thread_raises_is_raised_where_it_was_waited_for() -> None:
    with pytest.raises(SystemExit):
        await typed.run_in_thread(lambda: sys.exit(1))
    with pytest.raises(RuntimeError, match="StopIteration"):
        await typed.run_in_thread(lambda: next(iter(())))


async def test_calls_run_side_by_side_but_no_more_than_allowed() -> None:
    running = 0
    most = 0

    async def count(arguments: JsonObject, host: ToolHost) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(5):
            await checkpoint()
        running -= 1
        return "done"

    tools = executor_of(tool("count", count), at_once_max=3)
    results = await results_of(tools, *(call("count", number) for number in range(8)))
    assert [result.status for result in results] == ["success"] * 8
    assert most == 3


async def test_the_result_of_a_quick_tool_call_is_emitted_before_a_slow_one_ends() -> None:
    received = anyio.Event()

    async def slow(arguments: JsonObject, host: ToolHost) -> str:
        await received.wait()
        return "slow"

    tools = executor_of(tool("slow", slow), tool("quick", giving("quick")))

    class ReceivingTurn(RecordingTurn):
        def tool_finished(self, result: ToolCallResult) -> None:
            super().tool_finished(result)
            received.set()

    turn = ReceivingTurn()
    await tools.run_all((call("slow", 1), call("quick", 2)), turn)
    assert [result.result for result in turn.results] == ["quick", "slow"]


async def test_tool_calls_beyond_the_limit_are_skipped_with_a_reason() -> None:
    results = await results_of(
        executor_of(tool("it", giving("ran"))), *(call("it", number) for number in range(9))
    )
    skipped = [result for result in results if result.status == "skipped"]
    assert [result.tool_call_id for result in skipped] == ["call8"]
    assert skipped[0].result == "not run: at most 8 calls in one step"


async def test_a_tool_is_handed_the_conversation_it_runs_in() -> None:
    class Here(NoConversationHost):
        session_id = "abc"

    async def where(arguments: JsonObject, host: ToolHost) -> str:
        return host.session_id

    (result,) = await results_of(executor_of(tool("where", where)), call("where"), host=Here())
    assert result.result == "abc"


async def test_a_cancelled_step_tells_what_ran_and_what_did_not() -> None:
    tools = executor_of(tool("it", wait_for_ever), at_once_max=1)

    class CancelledTurn(RecordingTurn):
        def tool_started(self, tool_call: ToolCallRequest) -> None:
            scope.cancel()

    turn = CancelledTurn(why_stopped="ada changed her mind")
    with anyio.CancelScope() as scope:
        await tools.run_all((call("it", 1), call("it", 2)), turn)
    assert scope.cancelled_caught
    assert [(result.status, result.result) for result in turn.results] == [
        ("failed", "stopped before it was done: ada changed her mind"),
        ("skipped", "ada changed her mind"),
    ]


def tools_of_every_temper(gates: list[threading.Event]) -> ToolExecutor:
    async def steps(arguments: JsonObject, host: ToolHost) -> str:
        for _ in range(7):
            await checkpoint()
        return "done"

    async def tidy(arguments: JsonObject, host: ToolHost) -> str:
        try:
            return await wait_for_ever(arguments, host)
        finally:
            with anyio.CancelScope(shield=True):
                await checkpoint()

    async def fail(arguments: JsonObject, host: ToolHost) -> str:
        await checkpoint()
        raise ToolFailed("no")

    async def thread(arguments: JsonObject, host: ToolHost) -> str:
        return str(await typed.run_in_thread(gates[-1].wait))

    made = {"steps": steps, "tidy": tidy, "fail": fail, "thread": thread, "quick": giving("")}
    return executor_of(*(tool(name, run) for name, run in made.items()), at_once_max=3)


async def test_300_cancels_at_any_moment_leave_each_call_with_exactly_one_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(typed, "THREADS_MAX", 10_000)
    dice = random.Random(4)
    gates = [threading.Event()]
    tools = tools_of_every_temper(gates)
    cut = 0
    for _ in range(300):
        names = dice.choices(
            [*(tool.name for tool, _ in tools.every), "unknown"], k=dice.randrange(1, 8)
        )
        calls = tuple(call(name, number) for number, name in enumerate(names))
        turn = RecordingTurn()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tools.run_all, calls, turn)
            for _ in range(dice.randrange(14)):
                await checkpoint()
            tasks.cancel_scope.cancel()
        gates[-1].set()
        gates.append(threading.Event())
        assert sorted(result.tool_call_id for result in turn.results) == sorted(
            one.tool_call_id for one in calls
        )
        cut += any("cancelled" in result.result for result in turn.results)
    assert cut > 100, "too few of them came in the middle"
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("tool")]


def test_a_giant_tool_result_is_truncated_with_a_notice_first() -> None:
    assert bounded("漢" * 10, bytes_max=30) == "漢" * 10
    assert bounded("漢" * 11, bytes_max=32) == "[cut: the first 10 of 11 characters]\n" + "漢" * 10
    assert bounded("a" * 31, bytes_max=30).endswith("]\n" + "a" * 30)
