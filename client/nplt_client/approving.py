"""A tool wants to be run, and somebody must allow it: asked line by line.

Only a person at a terminal is asked. What has been piped in is no answer, and
nobody should wait minutes for one: there the answer is no. What is asked comes
from a model, so it is shown on one line and without a byte that could act.
"""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass
from typing import Final

from nplt_client.line_input import LineInput
from nplt_client.sanitize import sanitize_line
from nplt_client.tables import shorten
from nplt_client.terminal import say
from nplt_protocol.events import ApprovalRequest
from nplt_protocol.requests import Approval

_ARGUMENTS_WIDTH: Final = 2_000
_ANSWERS: Final = {
    "y": (True, False),
    "yes": (True, False),
    "a": (True, True),
    "always": (True, True),
    "n": (False, False),
    "no": (False, False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    allow: bool
    remember: bool = False


def question_text(event: ApprovalRequest) -> str:
    arguments = json.dumps(event.arguments, ensure_ascii=False)
    shown = shorten(sanitize_line(arguments), _ARGUMENTS_WIDTH)
    if event.truncated:
        shown += f" (cut; {event.size or 0:,} characters in all)"
    return f"allow {sanitize_line(event.tool_name)} {shown}? [y/n/a] "


def verdict_in(line: str) -> Verdict | None:
    """`None`: that was no answer."""
    answer = _ANSWERS.get(line.strip().lower())
    return None if answer is None else Verdict(allow=answer[0], remember=answer[1])


def ask_person(event: ApprovalRequest, lines: LineInput) -> Verdict:
    """Ctrl+D is a no; Ctrl+C is for the caller."""
    if not lines.interactive:
        say(f"({event.tool_name} is not allowed: nobody is here to be asked)")
        return Verdict(allow=False)
    while True:
        try:
            verdict = verdict_in(_read(lines, question_text(event)))
        except EOFError:
            say("")
            return Verdict(allow=False)
        if verdict is not None:
            return verdict
        say("y: yes, this once; n: no; a: yes, always in this conversation")


def answer_to(event: ApprovalRequest) -> Approval:
    """For a command that has no chat around it."""
    verdict = ask_person(event, LineInput())
    return Approval(
        approval_id=event.approval_id,
        decision="allow" if verdict.allow else "deny",
        remember=verdict.remember,
    )


def _read(lines: LineInput, question: str) -> str:
    """Nothing of ours is under way while a line is read: here Ctrl+C may strike."""
    former = signal.getsignal(signal.SIGINT)
    if former is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return lines.read(question)
    finally:
        signal.signal(signal.SIGINT, former)
