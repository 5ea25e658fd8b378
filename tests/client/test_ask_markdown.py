"""`nplt ask` formats Markdown on a terminal, and prints the exact text anywhere else."""

from __future__ import annotations

from pathlib import Path

from tests.client.nplt_process import run_nplt
from tests.client.terminal_user import at_terminal

ANSWER = "# Plan\n\n- [x] **done**\n- see [page](https://x.org)\n\n```python\nx = 1\n```"


def test_an_answer_on_a_terminal_is_formatted_and_with_raw_it_is_not(
    server: str, tmp_path: Path
) -> None:
    with at_terminal("ask", ANSWER, home=tmp_path, NPLT_SERVER=server) as person:
        person.sees("☑ ")
        person.sees_match(r"see .*page.* \(.*(https://x.org).*\)")
        person.sees_match(r"x = .*\x1b\[[0-9;]*m(1)")
        assert person.sees_it_end() == 0
    with at_terminal("ask", "--raw", ANSWER, home=tmp_path, NPLT_SERVER=server) as person:
        person.sees("# Plan")
        person.sees("- [x] **done**")
        assert person.sees_it_end() == 0


def test_an_answer_in_a_pipe_is_exact(server: str, tmp_path: Path) -> None:
    done = run_nplt("ask", ANSWER, home=tmp_path, server=server)
    assert done.stdout == f"{ANSWER}\n"
