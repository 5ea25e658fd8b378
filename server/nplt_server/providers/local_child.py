"""llama.cpp's own HTTP server, on a free port of loopback, for the process that started it.

    python -m nplt_server.providers.local_child MODEL.gguf NAME WINDOW_TOKENS SLOTS [--small]

The first line of its input is the key that requests must have, because other users of this machine
can reach the same loopback. It is not an argument, because they could read it there. The only line
of output is the address, written when the model is loaded. The process exits at the end of its
input, which comes even if the parent was killed, on every system.
"""

from __future__ import annotations

import os
import sys
import threading
from importlib import import_module
from typing import Any, BinaryIO

_THREADS_MAX = 4
"""More would wait longer than they work: the model is small."""
_PROMPTS_KEPT_MEBIBYTES = 64
"""Read prompts of others, put aside; by itself it would take eight gigabytes for them."""


def main() -> None:
    model, name, window_tokens, slots, *flags = sys.argv[1:]
    key = sys.stdin.buffer.readline().decode().strip()
    threading.Thread(target=_leave_with_parent, args=(sys.stdin.buffer,), daemon=True).start()
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # llama.cpp writes there too, when it breaks down
    asked = _parameters(model, name, window_tokens=int(window_tokens), slots=int(slots), key=key)
    if "--small" in flags:
        # Left to chance so small a model loses the thread, and then repeats itself.
        asked.sampling.temp = 0.0
        asked.sampling.penalty_repeat = 1.1
    xllamacpp: Any = import_module("xllamacpp")
    serving = xllamacpp.Server(asked)
    print(serving.listening_address, file=pipe, flush=True)
    threading.Event().wait()


def _parameters(model: str, name: str, *, window_tokens: int, slots: int, key: str) -> Any:
    xllamacpp: Any = import_module("xllamacpp")  # an extra, and it tells no types
    asked = xllamacpp.CommonParams()
    asked.model.path = model
    asked.model_alias = {name}
    asked.hostnames = ["127.0.0.1"]
    asked.port = 0
    asked.api_keys = [key]
    asked.ui = False
    asked.use_jinja = True
    asked.n_parallel = slots
    asked.n_ctx = window_tokens * slots
    asked.cache_ram_mib = _PROMPTS_KEPT_MEBIBYTES
    asked.warmup = asked.fit_params = False  # what they save is less than they take
    for threads in (asked.cpuparams, asked.cpuparams_batch):
        # They wait for each other after every word: one that finds no core to run on
        # holds up the others, so one core is left for everybody else.
        threads.n_threads = max(min((os.cpu_count() or 1) - 1, _THREADS_MAX), 1)
        threads.poll = 0
    return asked


def _leave_with_parent(parent: BinaryIO) -> None:
    parent.read()
    # At once, from a thread that is not the main one: nothing here is worth keeping.
    os._exit(0)


if __name__ == "__main__":
    main()
