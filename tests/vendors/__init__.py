"""Strict emulators of the APIs of OpenAI and Anthropic, for tests.

    from tests.vendors import Answer, Cut, Text, ToolCall, emulator

    async def test_my_program_survives_a_cut():
        async with emulator(lambda call: Answer(parts=(Text("hello"),))) as vendors:
            vendors.fail_next(Cut())
            await my_program(vendors.openai_url, key=vendors.key)
            assert vendors.rejections == []

Real HTTP on loopback, for the vendors' own SDKs or anything else that speaks it: chat
completions, responses and messages, streamed or whole. They answer 400 with the vendors'
words to every broken rule, bind thinking to what stood before it, count cached prefixes,
and fail as they are told. `emulator_in_thread` is for code that waits, and

    python -m tests.vendors --port 0

serves in a process of its own. Each file tells what of it is documented, what users have
reported, and what is assumed: `*_rules.py` and `*_shapes.py` are what the vendors say.
"""

from __future__ import annotations

from tests.vendors.answers import (
    Answer,
    Call,
    Part,
    Refusal,
    Script,
    Text,
    Thinking,
    ToolCall,
    echo,
    say,
)
from tests.vendors.emulator import Emulator, Limits, Received, emulator
from tests.vendors.faults import (
    BrokenJson,
    Cut,
    ErrorEvent,
    Fault,
    HangUp,
    NoEnd,
    Stall,
    Status,
)
from tests.vendors.rejections import Rejection
from tests.vendors.threads import HostedEmulator, emulator_in_thread

__all__ = [
    "Answer",
    "BrokenJson",
    "Call",
    "Cut",
    "Emulator",
    "ErrorEvent",
    "Fault",
    "HangUp",
    "HostedEmulator",
    "Limits",
    "NoEnd",
    "Part",
    "Received",
    "Refusal",
    "Rejection",
    "Script",
    "Stall",
    "Status",
    "Text",
    "Thinking",
    "ToolCall",
    "echo",
    "emulator",
    "emulator_in_thread",
    "say",
]
