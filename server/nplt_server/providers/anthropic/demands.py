"""How the model is asked to answer: length, thinking, effort, temperature.

Options come from a prompt as they were typed, for whatever model there is: one that a
model does not know, or that contradicts another, is left out rather than refused. They
stay the same within a turn, because another way of thinking is another cache.
"""

from __future__ import annotations

from collections.abc import Mapping

from nplt_protocol.json_values import JsonValue
from nplt_server.providers.anthropic.abilities import EFFORTS, ModelAbilities
from nplt_server.providers.anthropic.wire import Json

_OUTPUT_TOKENS = 8192
_BUDGET_TOKENS_MIN = 1024
_ANSWER_TOKENS_MIN = 256
"""What thinking leaves for the answer, at the least."""
_BUDGET_SHARES = {"low": 0.25, "medium": 0.5, "high": 0.75, "xhigh": 0.875, "max": 0.875}
_NO_THINKING = "none"
_OTHER_NAMES = {"minimal": "low"}


def demands(
    options: Mapping[str, JsonValue],
    abilities: ModelAbilities,
    *,
    answer_tokens_max: int | None,
    may_think: bool = True,
) -> Json:
    """Fields of the request's body. `may_think`: nothing that was said so far forbids it."""
    output_tokens = _output_tokens(options, answer_tokens_max)
    effort, temperature = _effort(options), _temperature(options)
    if effort == _NO_THINKING and not abilities.can_leave_thinking:
        effort = EFFORTS[0]  # the least it can do
    asked: Json = {"max_tokens": output_tokens}
    thinking = _thinking(abilities, effort, output_tokens) if may_think else None
    if temperature is not None and abilities.takes_temperature:
        if effort is None:
            thinking = None  # who thinks has none; it was asked for, and thinking was not
        if thinking is None or thinking["type"] == "disabled":
            asked["temperature"] = temperature
    if thinking is not None:
        asked["thinking"] = thinking
    if (level := _nearest(effort, abilities.efforts)) is not None:
        asked["output_config"] = {"effort": level}
    return asked


def _output_tokens(options: Mapping[str, JsonValue], most: int | None) -> int:
    wanted = options.get("output_tokens")
    if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 1:
        return most or _OUTPUT_TOKENS
    return min(wanted, most) if most else wanted


def _effort(options: Mapping[str, JsonValue]) -> str | None:
    effort = options.get("effort")
    if not isinstance(effort, str):
        return None
    effort = _OTHER_NAMES.get(effort, effort)
    return effort if effort in EFFORTS or effort == _NO_THINKING else None


def _temperature(options: Mapping[str, JsonValue]) -> float | None:
    """Others go up to 2; here 1 is the most."""
    wanted = options.get("temperature")
    if not isinstance(wanted, int | float) or isinstance(wanted, bool) or wanted != wanted:
        return None
    return min(max(float(wanted), 0.0), 1.0)


def _thinking(abilities: ModelAbilities, effort: str | None, output_tokens: int) -> Json | None:
    if abilities.thinking == "none":
        return None
    if effort == _NO_THINKING:
        return {"type": "disabled"}
    if abilities.thinking == "adaptive":
        # Newer models show nothing of it unless asked to.
        return {"type": "adaptive", "display": "summarized"}
    if effort is None:
        return None
    budget = max(int(output_tokens * _BUDGET_SHARES[effort]), _BUDGET_TOKENS_MIN)
    if output_tokens - budget < _ANSWER_TOKENS_MIN:
        return None
    return {"type": "enabled", "budget_tokens": budget}


def _nearest(effort: str | None, known: tuple[str, ...]) -> str | None:
    """The highest level the model knows that is not above what was asked for."""
    if effort is None or effort == _NO_THINKING:
        return None
    below = EFFORTS[: EFFORTS.index(effort) + 1]
    return next((level for level in reversed(below) if level in known), None)
