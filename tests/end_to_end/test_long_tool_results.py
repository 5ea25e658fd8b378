"""A result that is too long to be shown is kept whole, and the model can read on."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.client.nplt_process import run_nplt
from tests.support.scripted_vendor import Json, Reply, chat, chat_calls, vendor
from tests.support.server_thread import serving


def lines() -> str:
    """Says many lines."""
    return "".join(f"line {number}\n" for number in range(20_000))


def test_a_model_with_call_ids_of_its_own_reads_on_in_a_long_result(tmp_path: Path) -> None:
    def reads_on(body: Json) -> Reply:
        result = body["messages"][-1]["content"]
        found = re.search(r'bytes more: read_result reads them, tool_call_id "([\w-]+)"', result)
        assert found is not None, result[-200:]
        arguments = json.dumps({"tool_call_id": found[1], "offset": 60_000})
        return chat_calls(("own2", "read_result", arguments))

    with vendor(chat_calls(("own1", "lines", "{}")), reads_on, chat("done")) as server:
        settings = {
            "providers": [server.provider()],
            "extensions": {"tools": [f"{__name__}:lines"]},
            "tools": {"lines": "allow"},
        }
        with serving(tmp_path / "data", settings) as port:
            asked = run_nplt("ask", "go", home=tmp_path, server=f"nplt://127.0.0.1:{port}")
    assert asked.stdout == "done\n"
    assert server.requests[1]["messages"][-1]["tool_call_id"] == "own1"
    read = server.requests[2]["messages"][-1]["content"]
    assert read.startswith("[bytes 60000 to 76000 of 208890; next offset 76000]\n")
