"""Deciding where a new epoch cuts: how much detail each older turn is worth.

From the newest turn back: live while there is room for it, then summary, then
gist, and the rest is not shown; whole turns only, so no call loses its result.
The epoch fills a part of the budget, and the rest of it is there to grow into:
each epoch costs the provider's cache of what was sent, so they must be rare.
It stops at the first turn that is not shown: the cost is that of what fits,
however long the conversation is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from nplt_server.context.selection import EpochPlan
from nplt_storage.conversation.turns import Turn
from nplt_storage.facts.sections import LevelOfDetail

KEEP: Final = 0.5
"""How much of the budget a new epoch fills."""
THRESHOLD: Final = 0.85
"""How much of it may be filled before a new epoch begins."""
_SHARES: Final[Mapping[LevelOfDetail, float]] = {"live": 0.6, "summary": 0.85, "gist": 1.0}
"""Where, in the room for older turns, each level ends and the next begins."""
_LEVELS: Final = tuple(_SHARES)

TurnTokens: TypeAlias = Callable[[Turn, LevelOfDetail], int]
_Limits: TypeAlias = Mapping[LevelOfDetail, int]


def plan_epoch(
    newest_first: Iterable[Turn],
    *,
    budget: int,
    fixed: int,
    tokens: TurnTokens,
    keep: float = KEEP,
) -> EpochPlan:
    """`fixed`: what the context holds beside these turns."""
    room = max(0, int(keep * budget) - fixed)
    limits: _Limits = {level: int(share * room) for level, share in _SHARES.items()}
    spare = max(room, int(THRESHOLD * budget) - fixed)
    # A prompt most likely refers to the turn before it: that one may take more.
    limits_now: _Limits = {"live": limits["live"], "summary": spare, "gist": spare}
    level: LevelOfDetail = "live"
    taken, all_live, omitted_through = 0, 0, 0
    through: dict[LevelOfDetail, int] = {}
    for turn in newest_first:
        if all_live <= room:
            all_live += tokens(turn, "live")
        fitting = _first_that_fits(turn, level, taken, limits_now, tokens)
        if fitting is None:
            omitted_through = turn.number
            break
        level = fitting
        taken += tokens(turn, level)
        through.setdefault(level, turn.number)
        limits_now = limits
    else:
        if all_live <= room:
            return EpochPlan()
    gist_through = through.get("gist", omitted_through)
    return EpochPlan(
        omitted_through=omitted_through,
        gist_through=gist_through,
        summary_through=through.get("summary", gist_through),
    )


def _first_that_fits(
    turn: Turn, level: LevelOfDetail, taken: int, limits: _Limits, tokens: TurnTokens
) -> LevelOfDetail | None:
    for candidate in _LEVELS[_LEVELS.index(level) :]:
        if taken + tokens(turn, candidate) <= limits[candidate]:
            return candidate
    return None
