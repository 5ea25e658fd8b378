"""What a model is shown: history projected into context messages. Pure.

The middle one of three stages (history → context → provider): no vendor's
shape here, and nothing is ever written back.

    messages     what is shown, by role         selection   what an epoch shows of older turns
    levels       an entry at a level of detail  plan        where a new epoch cuts
    steps        what must stay together        epochs      when one is due, and what it says
    measuring    tokens, counted once           fitting     a context that fits for the moment
    scene        what a context is made from    summaries   what a model may summarize
    compiled     the one list that grows        account     why each entry is shown as it is
    projection   all of it, for a conversation  attachments files that go with a prompt
"""

from nplt_server.context.attachments import ContextAttachment
from nplt_server.context.messages import (
    ContextMessage,
    ModelInputMessage,
    ModelOutputMessage,
    SystemMessage,
    ToolResultsMessage,
)
from nplt_server.context.projection import Projection, render_context
from nplt_server.context.views import CallFrame, ContextView

__all__ = [
    "CallFrame",
    "ContextAttachment",
    "ContextMessage",
    "ContextView",
    "ModelInputMessage",
    "ModelOutputMessage",
    "Projection",
    "SystemMessage",
    "ToolResultsMessage",
    "render_context",
]
