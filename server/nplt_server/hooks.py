"""Runs the operator's commands when something happens in a conversation: a turn ends, a tool asks
for approval, a message is stored.

A command gets one JSON object on stdin and runs in a process group of its own, which is killed
after a time limit. Hooks never delay or fail a turn: they run in tasks of their own, a few at
once, and those beyond `WAITING_MAX` are dropped and counted. Only the server that owns a
conversation runs its hooks, because its events are emitted only there.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, Literal, TypeAlias

import anyio
import anyio.lowlevel
import orjson
from msgspec import Struct

from nplt_protocol import JsonObject
from nplt_protocol.messages import ApprovalRequest, Event, TurnFinished
from nplt_server.histories import Histories
from nplt_server.logs import RepeatedWarnings
from nplt_server.request_id import request_id
from nplt_server.settings import HookSettings
from nplt_server.tasks import Spawn
from nplt_storage.entries import Entry, ModelInputEntry, ModelOutputEntry
from nplt_storage.errors import StorageError

log = logging.getLogger(__name__)

HookEvent: TypeAlias = Literal["turn_finished", "asking", "failed", "message"]
WAITING_MAX: Final = 1_000
_STDERR_BYTES_MAX: Final = 2_000
_REST_BYTES: Final = 64 * 1024
_END_SECONDS_MAX: Final = 2.0
"""A process that left the group may hold the output open."""
_PASSED_ON: Final = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TZ", "USER")
"""These variables, and those of the desktop, are the environment of a hook. It has no keys of
providers."""
_OF_DESKTOP: Final = ("DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR")


class _Due(Struct, frozen=True):
    event: HookEvent
    command: tuple[str, ...]
    details: JsonObject


class Hooks:
    def __init__(
        self,
        settings: HookSettings,
        *,
        histories: Histories,
        spawn: Spawn,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._commands: dict[HookEvent, tuple[tuple[str, ...], ...]] = {
            "turn_finished": settings.turn_finished,
            "asking": settings.asking,
            "failed": settings.failed,
            "message": settings.message,
        }
        self._settings = settings
        self._histories = histories
        self._spawn = spawn
        passed_on = (*_PASSED_ON, *_OF_DESKTOP)
        self._environ = {name: environ[name] for name in passed_on if name in environ}
        self._waiting: deque[_Due] = deque()
        self._running = 0
        self._warnings = RepeatedWarnings(log)
        self.outcomes: Counter[tuple[str, str]] = Counter()
        """How many commands succeeded, failed, timed out or were dropped, by event."""

    def __bool__(self) -> bool:
        """Whether there is any hook."""
        return any(self._commands.values())

    # For the broadcast of a conversation

    def emitted(self, event: Event) -> None:
        match event:
            case TurnFinished():
                details: JsonObject = {
                    "session_id": event.session_id,
                    "turn_id": event.turn_id,
                    "state": event.state,
                    "model": event.model,
                    "stop_reason": event.stop_reason,
                    "error": event.error,
                }
                self._add("turn_finished", details)
                if event.state == "failed":
                    self._add("failed", details)
            case ApprovalRequest():
                details = {
                    "session_id": event.session_id,
                    "turn_id": event.turn_id,
                    "approval_id": event.approval_id,
                    "tool_name": event.tool_name,
                    "expires_at": event.expires_at,
                }
                if self._settings.content:
                    details["arguments"] = event.arguments
                self._add("asking", details)
            case _:
                pass

    def stored(self, session_id: str, entry: Entry) -> None:
        if not isinstance(entry, ModelInputEntry | ModelOutputEntry) or not entry.content:
            return
        details: JsonObject = {
            "session_id": session_id,
            "turn_id": entry.turn_id,
            "seq": entry.seq,
            "role": "user" if isinstance(entry, ModelInputEntry) else "assistant",
        }
        if self._settings.content:
            details["text"] = entry.content
        self._add("message", details)

    def _add(self, event: HookEvent, details: JsonObject) -> None:
        for command in self._commands[event]:
            if len(self._waiting) >= WAITING_MAX:
                self.outcomes[event, "dropped"] += 1
                self._warnings.warn(event, f"too many hooks wait; some of {event} are dropped")
                continue
            self._waiting.append(_Due(event, command, details))
            if self._running < self._settings.at_once:
                self._running += 1
                self._spawn(self._run_waiting)

    # Running

    async def _run_waiting(self) -> None:
        try:
            while self._waiting:
                due = self._waiting.popleft()
                request_id.set(str(due.details["turn_id"] or ""))
                outcome = await self._run(due)
                self.outcomes[due.event, outcome] += 1
        finally:
            self._running -= 1

    async def _run(self, due: _Due) -> str:
        payload = orjson.dumps({"event": due.event, **due.details, **await self._row_of(due)})
        name = due.command[0]
        try:
            process = await asyncio.create_subprocess_exec(
                *due.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env=self._environ,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            self._warnings.warn(name, f"the hook {name} can't be run: {error}")
            return "failed"
        stderr = b""
        try:
            with anyio.move_on_after(self._settings.timeout) as scope:
                stderr = await _exchange(process, payload)
                await process.wait()
        finally:
            _kill_group(process)
            with anyio.move_on_after(_END_SECONDS_MAX, shield=True):
                await _end(process)
        if scope.cancelled_caught:
            seconds = self._settings.timeout
            self._warnings.warn(name, f"the hook {name} was stopped after {seconds:g} s")
            return "timed_out"
        if process.returncode:
            words = stderr.decode(errors="replace").strip()
            self._warnings.warn(name, f"the hook {name} failed ({process.returncode}): {words}")
            return "failed"
        return "succeeded"

    async def _row_of(self, due: _Due) -> JsonObject:
        """The user and the name of the conversation; empty if they can't be read now."""
        with suppress(StorageError):
            found = await self._histories.find(str(due.details["session_id"]))
            if found is not None:
                return {"user": found.row.user, "name": found.row.name}
        return {}


async def _exchange(process: asyncio.subprocess.Process, payload: bytes) -> bytes:
    """Writes the input, and returns the beginning of stderr. The rest is not read, so a command
    that floods stderr has to wait there, and is killed when its time is over."""
    assert process.stdin is not None
    assert process.stderr is not None
    with suppress(OSError):  # it need not read its input
        process.stdin.write(payload)
        await process.stdin.drain()
    process.stdin.close()
    words = b""
    while len(words) < _STDERR_BYTES_MAX and (
        piece := await process.stderr.read(_STDERR_BYTES_MAX)
    ):
        words += piece
    return words[:_STDERR_BYTES_MAX]


async def _end(process: asyncio.subprocess.Process) -> None:
    """Waits for a killed command. asyncio reports its end once all its output was read."""
    assert process.stderr is not None
    while await process.stderr.read(_REST_BYTES):
        await anyio.lowlevel.checkpoint()
    await process.wait()


def _kill_group(process: asyncio.subprocess.Process) -> None:
    """Kills the command and the processes that it left running."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
