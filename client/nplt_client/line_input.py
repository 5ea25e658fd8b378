"""Lines from a person or a pipe, read in the main thread.

The connection lives in another thread's event loop, so waiting here blocks
nobody. A person gets line editing where readline exists, and a prompt on the
terminal, never in a redirected stdout.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from nplt_client.terminal import is_terminal

PROMPT = "you ▸ "
PLAIN_PROMPT = "you> "


class LineInput:
    def __init__(self) -> None:
        self.interactive = is_terminal(sys.stdin)
        self.prompt = _fitting_prompt() if self.interactive else ""
        self._typed_so_far: Callable[[], str] = lambda: ""
        if self.interactive and is_terminal(sys.stdout):
            self._typed_so_far = _load_readline()

    def read(self, question: str | None = None) -> str:
        """One line without its end; EOFError when there are no more. `question`: what
        stands before it, instead of the prompt."""
        prompt = self.prompt if question is None else question
        if not self.interactive:
            line = sys.stdin.readline()
            if not line:
                raise EOFError
            return line.rstrip("\n")
        if is_terminal(sys.stdout):
            return input(prompt)
        # `input` would put the prompt into the file that stdout is.
        sys.stderr.write(prompt)
        sys.stderr.flush()
        return input()

    @property
    def shown(self) -> str:
        """What stands on the line where the person types."""
        return self.prompt + self._typed_so_far()


def _fitting_prompt() -> str:
    try:
        PROMPT.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return PLAIN_PROMPT
    return PROMPT


def _load_readline() -> Callable[[], str]:
    try:
        import readline
    except ImportError:
        return lambda: ""
    return readline.get_line_buffer
