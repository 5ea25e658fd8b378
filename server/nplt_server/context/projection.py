"""From history to context: what the model of a turn is shown.

`Projection` is kept by a conversation and does only what is new; `render_context`
starts from nothing and gives the same. Both read, and never write. Under the rule
`epochs` each context begins with the last one until an epoch entry says why not;
under `newest_live` only the newest input or results are live and older ones
summaries, which changes what was sent with every call.

Before a call, `due_epoch` gives the entry to be written first, if any; then
`context` gives what is sent. A long conversation is never put together only to
find that it does not fit: that is found out from its end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal, TypeAlias

from nplt_server.context.compiled import Compiled
from nplt_server.context.epochs import Call, EpochReason, draft_epoch, epoch_due
from nplt_server.context.fitting import fit
from nplt_server.context.measuring import Measure, Measured, tokens_of
from nplt_server.context.messages import ContextMessage
from nplt_server.context.scene import Asked, Scene
from nplt_server.context.screens import ScreensInTurns
from nplt_server.context.selection import Selection
from nplt_server.context.summaries import SummaryTask, summary_task
from nplt_server.context.views import CallFrame, ContextView, SoFar
from nplt_server.tokens.characters import CharacterCounter
from nplt_storage.conversation.history import ConversationHistory
from nplt_storage.facts.entries import EpochEntry

Policy: TypeAlias = Literal["epochs", "newest_live"]

_EVERYTHING: Final = CallFrame()
_WORTH: Final = 1 / 20
"""Of the budget: an epoch that frees less is not worth the provider's cache."""
_FEW: Final = 16
"""Turns that are added without a look whether all of them will fit."""


def render_context(
    history: ConversationHistory,
    asked: Asked = None,
    *,
    measure: Measure | None = None,
    frame: CallFrame = _EVERYTHING,
    policy: Policy = "epochs",
) -> tuple[ContextMessage, ...]:
    projection = Projection(history, measure or Measure(CharacterCounter()), policy=policy)
    return tuple(projection.context(asked, frame).messages)


class Projection:
    __slots__ = ("_compiled", "_screens", "history", "measure", "policy")

    def __init__(
        self, history: ConversationHistory, measure: Measure, *, policy: Policy = "epochs"
    ) -> None:
        self.history = history
        self.measure = measure
        self.policy = policy
        self._screens = ScreensInTurns(history)
        self._compiled: Compiled | None = None

    def context(
        self, asked: Asked, frame: CallFrame = _EVERYTHING, *, epoch: EpochEntry | None = None
    ) -> ContextView:
        """One that fits, or `ContextTooSmall`. With an epoch that is not written yet: what
        the context will be when it is."""
        scene = self._call(asked, frame).scene(epoch or self.history.epoch)
        view = self._view(scene, frame, keep=epoch is None)
        return replace(view, head_seq=self.history.head_seq)

    def _view(self, scene: Scene, frame: CallFrame, *, keep: bool) -> ContextView:
        if self.policy == "newest_live":
            return _newest_live(scene, frame)
        compiled = self._compile(scene, frame, keep=keep)
        if compiled is None:
            return _trimmed(scene, frame)
        return ContextView(
            messages=SoFar(compiled.messages),
            sizes=SoFar(compiled.sizes),
            tokens=compiled.tokens + frame.tools_tokens,
            frame=frame,
            selection=scene.selection,
            has_head=compiled.has_head,
        )

    def due_epoch(self, asked: Asked, frame: CallFrame, *, screen: str = "") -> EpochEntry | None:
        """The epoch to be written before this call, or none. `screen`: as it is now."""
        budget = frame.budget_tokens
        if self.policy == "newest_live" or budget is None:
            return None
        call = self._call(asked, frame)
        now = call.scene(self.history.epoch)
        tokens = self._next_tokens(now, frame, keep=True)
        reason = epoch_due(call, next_tokens=tokens)
        if reason is None:
            return None
        draft = draft_epoch(call, reason, screen=screen)
        if reason == "budget":
            then = self._next_tokens(call.scene(draft), frame, keep=False)
            return draft if tokens - then >= budget * _WORTH else None
        return draft

    def epoch_for(self, reason: EpochReason, frame: CallFrame, *, screen: str = "") -> EpochEntry:
        """One for a change that is no entry, and so not seen by `due_epoch`."""
        return draft_epoch(self._call(None, frame), reason, screen=screen)

    def asked_epoch(self, frame: CallFrame, *, screen: str = "") -> EpochEntry:
        """One that somebody wished for, and nothing else: what is shown is halved, or
        was summarized for it: then that is what makes room, and no turn is left out
        that the summary does not tell."""
        epoch = self.history.epoch
        if any(entry.seq > (epoch.seq if epoch else 0) for entry in self.history.compactions):
            return draft_epoch(self._call(None, frame), "asked", screen=screen)
        now = self._call(None, frame).scene(epoch)
        tokens = self._next_tokens(now, frame, keep=True)
        fixed = frame.tools_tokens + tokens_of([*now.system(), *now.head()])
        half = fixed + max(0, tokens - fixed) // 2
        halved = replace(frame, budget_tokens=int(half / frame.keep))
        draft = draft_epoch(self._call(None, halved), "asked", screen=screen)
        return replace(draft, budget_tokens=frame.budget_tokens or 0)

    def summary_task(
        self, asked: Asked, draft: EpochEntry, *, room: int | None = None
    ) -> SummaryTask | None:
        """What a model may summarize so that the epoch shows that instead."""
        return summary_task(self._call(asked, _EVERYTHING).scene(draft), draft, room=room)

    def _call(self, asked: Asked, frame: CallFrame) -> Call:
        return Call(
            history=self.history,
            screens=self._screens,
            measure=self.measure,
            asked=asked,
            frame=frame,
        )

    def _next_tokens(self, scene: Scene, frame: CallFrame, *, keep: bool) -> int:
        """More than the budget if it does not fit; how much more is not worth counting."""
        compiled = self._compile(scene, frame, keep=keep)
        if compiled is None:
            return (frame.budget_tokens or 0) + 1
        return compiled.tokens + frame.tools_tokens

    def _compile(self, scene: Scene, frame: CallFrame, *, keep: bool) -> Compiled | None:
        """`None` if it does not fit. Kept, it is where the next one starts from."""
        compiled = self._compiled if keep else None
        if compiled is not None and not compiled.leads_to(scene):
            compiled = None
        if (compiled is None or compiled.lacks(scene) > _FEW) and _is_too_long(scene, frame):
            return None
        if compiled is None:
            compiled = Compiled(scene)
        if keep:
            self._compiled = compiled
        compiled.extend(scene)
        room = _room(frame)
        return compiled if room is None or compiled.tokens <= room else None


def _newest_live(scene: Scene, frame: CallFrame) -> ContextView:
    aged = scene.aged()
    if _is_too_long(aged, frame):
        return _trimmed(aged, frame)
    return _view(aged.everything(), frame, aged.selection, has_head=bool(aged.head()))


def _trimmed(scene: Scene, frame: CallFrame) -> ContextView:
    assert frame.budget_tokens is not None
    fitted = fit(scene, budget=frame.budget_tokens, tools_tokens=frame.tools_tokens)
    view = _view(fitted.measured, frame, fitted.selection, has_head=fitted.has_head)
    return replace(view, is_trimmed=True)


def _view(
    measured: list[Measured], frame: CallFrame, selection: Selection, *, has_head: bool
) -> ContextView:
    sizes = [tokens for _, tokens in measured]
    return ContextView(
        messages=[message for message, _ in measured],
        sizes=sizes,
        tokens=sum(sizes) + frame.tools_tokens,
        frame=frame,
        selection=selection,
        has_head=has_head,
    )


def _room(frame: CallFrame) -> int | None:
    return None if frame.budget_tokens is None else frame.budget_tokens - frame.tools_tokens


def _is_too_long(scene: Scene, frame: CallFrame) -> bool:
    room = _room(frame)
    return room is not None and scene.tokens(room) > room
