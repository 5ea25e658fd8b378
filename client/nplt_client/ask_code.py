"""`nplt ask -x`: the code of the answer and nothing else, fit for a file or another program.

All or nothing: of an answer that failed or was cut short no line is printed,
and one without code is a failure, not prose for a shell to run.
"""

from __future__ import annotations

from nplt_client.ask_output import TextOutput
from nplt_client.code_blocks import extract
from nplt_client.errors import ProviderFailed
from nplt_client.terminal import say
from nplt_client.turn_record import TurnRecord


class CodeOutput(TextOutput):
    def ended(self, record: TurnRecord) -> None:
        if record.finished is None or record.finished.state != "completed":
            return
        found = extract(record.text)
        if found is None:
            where = f": nplt history {record.receipt.session_id}" if record.receipt else ""
            raise ProviderFailed(f"there is no block of code in the answer{where}")
        if found.left_out and not self._quiet:
            languages = ", ".join(language or "plain" for language in found.left_out)
            say(f"left out, in other languages than the first: {languages}", dimmed=True)
        self._answer.write(found.code)
        self._answer.end_line()
