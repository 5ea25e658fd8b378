"""The models the emulators offer, and what each of them takes.

Known from the vendors' documentation and from refusals users have reported: from
Claude Opus 4.6 on no prefill, from Opus 4.7 on no sampling parameters and adaptive
thinking only, from 5.5 on (and with Fable) no word that it shall not think; OpenAI's
reasoning models take no temperature and no `max_tokens`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaudeModel:
    name: str
    window_tokens: int = 200_000
    output_tokens_max: int = 64_000
    takes_sampling: bool = True
    takes_prefill: bool = True
    thinking_kinds: tuple[str, ...] = ("enabled",)
    can_leave_thinking: bool = True
    takes_schema: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GptModel:
    name: str
    window_tokens: int = 128_000
    output_tokens_max: int = 16_384
    reasons: bool = False
    efforts: tuple[str, ...] = ()
    vendor: Literal["openai", "deepseek", "gemini"] = "openai"
    """Of others that speak as OpenAI does, through chat completions."""
    charges_cache_writes: bool = False
    """developers.openai.com/api/docs/guides/prompt-caching: from GPT-5.6 on, and then
    `cache_write_tokens` says how many."""
    tools_on_chat: Literal["with any effort", "without an effort", "with none only"] = (
        "with any effort"
    )


_NEW_CLAUDE = ClaudeModel(
    name="",
    window_tokens=1_000_000,
    output_tokens_max=128_000,
    takes_sampling=False,
    takes_prefill=False,
    thinking_kinds=("adaptive",),
    can_leave_thinking=False,
)
# Efforts: the API reference of `reasoning_effort` (SDK's shared/reasoning_effort); for GPT-5.6
# the refusal in pydantic-ai issue 7081; for GPT-6 "Deployment checklist", Choose a model: GPT-6
# Astra and GPT-6.1 Sol know no `none`. Tools through chat completions: the same page ("only
# with reasoning_effort none"; Astra and 6.1 Sol only through responses), and for GPT-5.4
# openai-openapi issue 541.
_NEW_GPT = GptModel(
    name="",
    window_tokens=400_000,
    output_tokens_max=128_000,
    reasons=True,
    efforts=("none", "low", "medium", "high", "xhigh"),
)
_GPT_5_4 = replace(_NEW_GPT, tools_on_chat="without an effort")
_GPT_6 = replace(
    _NEW_GPT,
    efforts=(*_NEW_GPT.efforts, "max"),
    tools_on_chat="with none only",
    charges_cache_writes=True,
)

CLAUDE_MODELS = (
    ClaudeModel(name="claude-opus-4-1", output_tokens_max=32_000, takes_schema=False),
    ClaudeModel(name="claude-haiku-4-5"),
    ClaudeModel(name="claude-opus-4-5"),
    ClaudeModel(
        name="claude-opus-4-6",
        takes_prefill=False,
        thinking_kinds=("enabled", "adaptive"),
    ),
    replace(_NEW_CLAUDE, name="claude-opus-5-5"),
    replace(_NEW_CLAUDE, name="claude-sonnet-5-5"),
    replace(_NEW_CLAUDE, name="claude-haiku-5-5"),
    replace(_NEW_CLAUDE, name="claude-fable-5-1"),
)

GPT_MODELS = (
    GptModel(name="gpt-4o-mini"),
    GptModel(name="gpt-4.1", window_tokens=1_047_576, output_tokens_max=32_768),
    replace(_NEW_GPT, name="gpt-5.2"),
    replace(_GPT_5_4, name="gpt-5.4"),
    replace(_GPT_5_4, name="gpt-5.4-mini"),
    replace(_GPT_5_4, name="gpt-5.5"),
    replace(_GPT_6, name="gpt-5.6"),
    replace(_GPT_6, name="gpt-6-luna"),
    replace(_GPT_6, name="gpt-6.1-sol", efforts=_GPT_6.efforts[1:]),
    replace(_GPT_6, name="gpt-6.1-terra"),
    GptModel(name="deepseek-v4-pro", vendor="deepseek"),
    GptModel(name="acme-thinker", vendor="deepseek"),  # as a gateway may call it
    GptModel(name="deepseek-distilled"),  # refuses fields OpenAI has not, as Groq does
    GptModel(name="gemini-3.8-flash", vendor="gemini"),
    replace(_GPT_6, name="deployment-of-mine"),  # as Azure lets one call it
)
