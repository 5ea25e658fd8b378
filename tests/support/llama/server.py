"""llama.cpp's server with the hand-made model, in a process of its own, for all tests of
a process. `python -m tests.support.llama.server MODEL.gguf TOKENS` is that process: it makes the
model, tells its address, and ends with its input.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

MODEL = "made-by-hand"
WINDOW_TOKENS = 1024
SLOTS = 4


class LlamaServer:
    def __init__(self, window_tokens: int = WINDOW_TOKENS) -> None:
        self._directory = tempfile.TemporaryDirectory()
        self.model_file = Path(self._directory.name) / "model.gguf"
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.support.llama.server"),
                *(str(self.model_file), str(window_tokens)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=Path(__file__).parents[3],
            env=os.environ | {"GGML_NO_BACKTRACE": "1"},
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().decode().strip()
        assert self.url, "llama.cpp's server did not start"

    @property
    def busy_slots(self) -> int:
        """How many answers it is at."""
        with urllib.request.urlopen(f"{self.url}/slots") as response:
            return sum(slot["is_processing"] for slot in json.load(response))

    def close(self) -> None:
        self._process.communicate()
        self._directory.cleanup()


@cache
def llama_server() -> LlamaServer:
    if find_spec("xllamacpp") is None:
        pytest.skip("there is no xllamacpp for this system")
    server = LlamaServer()
    atexit.register(server.close)
    return server


def main() -> None:
    # Here alone: they take longer to import than the server takes to start.
    from tests.support.llama.model import write_model

    xllamacpp: Any = import_module("xllamacpp")
    write_model(Path(sys.argv[1]))
    asked = xllamacpp.CommonParams()
    asked.model.path = sys.argv[1]
    asked.model_alias = {MODEL}
    asked.hostnames = ["127.0.0.1"]
    asked.port = 0
    asked.use_jinja = True
    asked.sampling.temp = 0.0  # the same every time, blanks in a call included
    asked.n_parallel = SLOTS
    asked.n_ctx = int(sys.argv[2]) * SLOTS
    asked.cpuparams.n_threads = asked.cpuparams_batch.n_threads = 1
    serving = xllamacpp.Server(asked)
    print(serving.listening_address, flush=True)
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main()
