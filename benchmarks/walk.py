"""`python -m benchmarks.walk`: the source files that one prompt runs through.

Runs the installed `nplt-server` in this process under a profiler, sends one prompt to
`offline/echo` over a socket, and prints the files of the product in the order in which
they are first entered, then how many there are, then the hops. A reader of the code opens about
as many files to follow a prompt, and turns from one to another about as often as there are hops.

A hop is a function that is entered on the event loop's thread after a function of another
module. Hops within a package are counted among the functions of that package alone.

What counts: every entry of a function, in any thread, between the sending of PROMPT and
the departure of TURN_FINISHED. Going on with a coroutine or a generator is an entry too,
and so is running a module that is imported for the prompt. What a thread beside the event
loop does counts once the thread reports to the loop; what it never reports (the index
is written some time later) is no part of the answer. What a dataclass generates has no
file and does not count. It is the first prompt, in a new conversation, on a connection
that has said HELLO.
"""

from __future__ import annotations

import io
import os
import runpy
import signal
import sys
import threading
import time
from collections import Counter
from contextlib import redirect_stdout
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from types import FrameType

from benchmarks.processes import PATIENCE_SECONDS, clean_environment, server_command
from benchmarks.scratch import scratch_directory
from benchmarks.wire import ERROR, PROMPT, TURN_FINISHED, Caller, Refused, encode, split

CONVERSATIONS = f"{os.sep}conversations{os.sep}"
PACKAGES = ("nplt_protocol", "nplt_storage", "nplt_server")
QUIET_SECONDS = 1.0
"""After HELLO: whatever the server still does for it is over by then. So is the first of the
sweeps that it makes every second, and the next one comes after the prompt's answer."""


class Walk:
    """Notes the files, from the prompt until its last frame can be read from the socket.

    Data sent over the loopback can be read as soon as `send` has returned. So looking at
    the client's socket whenever a new file is entered tells whether that was before or
    after TURN_FINISHED, however late the client's own thread is woken.
    """

    def __init__(self, roots: tuple[str, ...]) -> None:
        self._roots = roots
        self._order: dict[str, int] = {}
        """Of the files that count, when each was entered first."""
        self._unreported: dict[int, dict[str, int]] = {}
        """The same for each thread beside the event loop's, since it last reported."""
        self._entries = count()
        self._last_entered: dict[str, str] = {}
        self.hops: Counter[str] = Counter()
        """By package; the empty name stands for all of them."""
        self._lock = threading.Lock()
        self._caller: Caller | None = None
        self._rest = b""

    def files(self) -> list[str]:
        return sorted(self._order, key=self._order.__getitem__)

    def begin(self, caller: Caller) -> None:
        caller.sock.setblocking(False)
        self._caller = caller
        caller.sock.sendall(encode(PROMPT, 2, {"text": "hello world"}))

    def enter(self, frame: FrameType, event: str, called: object) -> None:
        """For `sys.setprofile`."""
        if self._caller is None:
            return
        if event == "call":
            path, name = frame.f_code.co_filename, frame.f_code.co_name
            if path.startswith(self._roots):
                self._note(path)
                self._count_hops(path)
        elif event == "c_call":  # of an event loop that is not written in Python
            name = getattr(called, "__name__", "")
        else:
            return
        if name == "call_soon_threadsafe" and not self.is_over():
            for path, order in self._unreported.pop(threading.get_ident(), {}).items():
                self._order[path] = min(order, self._order.get(path, order))

    def _note(self, path: str) -> None:
        thread = threading.get_ident()
        if path in self._order or path in self._unreported.get(thread, ()) or self.is_over():
            return
        is_loop = thread == threading.main_thread().ident
        of_thread = self._order if is_loop else self._unreported.setdefault(thread, {})
        of_thread[path] = next(self._entries)

    def _count_hops(self, path: str) -> None:
        if threading.get_ident() != threading.main_thread().ident or self.is_over():
            return
        for package in ("", CONVERSATIONS):
            if package in path and self._last_entered.get(package) != path:
                self._last_entered[package] = path
                self.hops[package] += 1

    def is_over(self) -> bool:
        with self._lock:
            if self._caller is None:
                return True
            try:
                data = self._caller.sock.recv(1 << 20)
            except BlockingIOError:
                return False
            frames, self._rest = split(self._rest + data)
            types = {frame.type for frame in frames}
            if ERROR in types or not data:
                raise Refused("the prompt was refused")
            if TURN_FINISHED in types:
                self._caller = None
            return self._caller is None


def main() -> int:
    roots = [_root(package) for package in PACKAGES]
    walk = Walk(tuple(f"{root}{os.sep}" for root in roots))
    for name in os.environ.keys() - clean_environment().keys():
        del os.environ[name]
    with scratch_directory(None) as scratch:
        _serve(server_command(scratch / "walk"), walk)
    files = walk.files()
    for path in files:
        root = next(root for root in roots if root in Path(path).parents)
        print(Path(path).relative_to(root.parent))
    print(len(files))
    print(f"hops: {walk.hops['']}, of them in conversations: {walk.hops[CONVERSATIONS]}")
    return 0 if files else 1


def _serve(command: list[str], walk: Walk) -> None:
    """Until the client, which has a thread of its own, has had its answer."""
    printed = io.StringIO()
    threading.Thread(target=_prompt, args=(printed, walk), daemon=True).start()
    # A signal must reach the main thread, so the server is the one that runs in it.
    _, *sys.argv = command
    threading.setprofile(walk.enter)
    sys.setprofile(walk.enter)
    try:
        with redirect_stdout(printed):
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def _prompt(printed: io.StringIO, walk: Walk) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    try:
        while "\n" not in printed.getvalue():
            _wait(end)
        listening = printed.getvalue().splitlines()[0]
        with Caller(int(listening.rsplit(":", 1)[1])) as caller:
            time.sleep(QUIET_SECONDS)
            walk.begin(caller)
            while not walk.is_over():
                _wait(end)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def _wait(end: float) -> None:
    if time.monotonic() > end:
        raise TimeoutError("the server did not answer")
    time.sleep(0.01)


def _root(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0])


if __name__ == "__main__":
    sys.exit(main())
