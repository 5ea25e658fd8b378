"""The last line of the screen; redrawn only when its words change.

It looks by itself, twice a second, and measures the lag now and then; whoever
knows that something changed may tell it to look at once.
"""

from __future__ import annotations

from textual.content import Content
from textual.events import Resize
from textual.widgets import Static

from nplt_client.connection_states import Online
from nplt_client.fullscreen.connection_watch import ConnectionWatch
from nplt_client.fullscreen.status import status_words
from nplt_client.fullscreen.visit import Visit

LOOK_SECONDS = 0.5
MEASURE_SECONDS = 5.0


class StatusLine(Static):
    DEFAULT_CSS = """
    StatusLine {
        height: 1;
        padding: 0 2;
        color: $text-muted;
        &.-offline { color: $text-warning; text-style: bold; }
    }
    """

    def __init__(self, visit: Visit) -> None:
        super().__init__(markup=False)
        self._visit = visit
        self._watch = ConnectionWatch(visit.client)
        self._shown = ""

    def on_mount(self) -> None:
        self.set_interval(LOOK_SECONDS, self.look)
        self.set_interval(MEASURE_SECONDS, self._measure)

    def look(self) -> None:
        connection, lag = self._watch.look(), self._watch.lag_seconds
        facts = self._visit.facts(lag_seconds=lag, connection=connection)
        words = status_words(facts, max(20, self.content_size.width or 80))
        if words != self._shown:
            self._shown = words
            self.set_class(not isinstance(facts.connection, Online), "-offline")
            self.update(Content(words))

    def on_resize(self, event: Resize) -> None:
        self._shown = ""
        self.look()

    def _measure(self) -> None:
        self.run_worker(self._watch.measure(), group="lag", exclusive=True)
