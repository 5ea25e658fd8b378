"""A tool waits for a yes or a no; what it would be given is shown exactly.

Nothing is decided by a key that was meant for the input: the window takes only
y, n and a, and Esc leaves the question open: `/allow` and `/deny` answer it later,
and when its time is over it is denied.
"""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from nplt_client.fullscreen.changes import ApprovalWanted

Verdict: TypeAlias = Literal["allow", "deny", "always"]


class ApprovalScreen(ModalScreen[Verdict | None]):
    DEFAULT_CSS = """
    ApprovalScreen {
        align: center middle;
        #window {
            width: 80%; max-width: 100; height: auto; max-height: 80%;
            border: round $warning; background: $surface; padding: 1 2;
        }
        VerticalScroll { height: auto; max-height: 16; margin: 1 0; }
        #arguments { height: auto; }
        #keys { height: auto; color: $text-muted; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "decide('allow')", "Allow", show=False),
        Binding("n", "decide('deny')", "Deny", show=False),
        Binding("a", "decide('always')", "Always", show=False),
        Binding("escape,ctrl+c", "leave", "Later", show=False, priority=True),
    ]

    def __init__(self, wanted: ApprovalWanted) -> None:
        super().__init__()
        self.wanted = wanted

    def compose(self) -> ComposeResult:
        with Vertical(id="window") as window:
            window.border_title = "a tool asks"
            yield Static(
                Content.assemble("May ", (self.wanted.tool_name, "bold"), " run with this?"),
                markup=False,
            )
            with VerticalScroll():
                yield Static(Content(self.wanted.arguments), id="arguments", markup=False)
            yield Static(
                Content("y yes · n no · a always for this tool · Esc later (/allow, /deny)"),
                id="keys",
                markup=False,
            )

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()

    def action_decide(self, verdict: Verdict) -> None:
        self.dismiss(verdict)

    def action_leave(self) -> None:
        self.dismiss(None)
