"""An MCP server of an older kind, with bad manners; it starts at once, for it needs nothing.

It takes the pages of its list of tools as JSON, one argument for each list: it
goes over to the next list when `renew` is called. What else it can do bears a
name that says so. If the first argument is a port, it is met there, by HTTP; and
it says on its standard output which port it is, for 0 is any.
"""

from __future__ import annotations

import json
import os
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

SOURCES: dict[str, object] = {"resources": {}, "prompts": {}} if os.environ.get("SOURCES") else {}
UNKNOWN = ["server/discover"]
if os.environ.get("SOURCES") == "without templates":
    UNKNOWN.append("resources/templates/list")

lists: list[Any] = [json.loads(argument) for argument in sys.argv[1:]]
hanging = 0
cancelled = 0
sessions: set[str] = set()
keys: set[str] = set()


def say(**message: object) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def say_without_end() -> None:
    """One line that never ends; how much of it was written stands in the file COUNT."""
    written = 0
    with Path(os.environ["COUNT"]).open("w") as stream:
        while True:
            written += os.write(1, b"x" * 4096)
            os.pwrite(stream.fileno(), str(written).encode(), 0)


def flood(kind: str) -> None:
    """Lines of `FLOOD_LINE_BYTES` for ever; how many were written stands in the file COUNT."""
    message: dict[str, object] = {"jsonrpc": "2.0"}
    if kind == "notification":
        message |= {"method": "notifications/message", "params": {"level": "info", "data": "x"}}
    if kind == "request":
        message |= {"id": 7, "method": "ping"}
    if kind == "reply":
        message |= {"id": 10**6, "result": {}}
    start = {"garbage": b"garbage", "empty": b""}.get(kind, json.dumps(message).encode())
    line = start.ljust(999) + b"\n"
    written = 0
    with Path(os.environ["COUNT"]).open("w") as stream:
        while True:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
            written += 1
            os.pwrite(stream.fileno(), str(written).encode(), 0)


def make_progress(token: object) -> None:
    """Until the file UNTIL is there."""
    for step in count():
        if Path(os.environ["UNTIL"]).exists():
            return
        say(method="notifications/progress", params={"progressToken": token, "progress": step})
        time.sleep(0.01)


def call(tool: str) -> dict[str, object]:
    if tool == "endless":
        say_without_end()
    if tool == "fail":
        return {"content": [{"type": "text", "text": os.environ["EVIL"]}], "isError": True}
    if tool == "die":
        os._exit(3)
    if tool == "forget":
        sessions.clear()
    if tool == "renew":
        lists.pop(0)
        say(method="notifications/tools/list_changed")
    if tool == "garble":
        print("this is no JSON", flush=True)
        sys.stdout.buffer.write(b"\xff\xfe not even text \n")
        sys.stdout.buffer.flush()
    if tool == "complain":
        complaint = "a line of complaint " + os.environ.get("EVIL", "")
        print(complaint + "!" * 100_000, file=sys.stderr, flush=True)
    if tool == "colour":
        return {"content": [{"type": "text", "text": "\x1b[31mred\x1b[0m\u202e\r\nnext"}]}
    if tool == "keys":
        return {"content": [], "structuredContent": {"seen": sorted(keys)}}
    if tool == "long":
        return {"content": [{"type": "text", "text": "x" * 3_000_000}]}
    if tool == "strange":
        return {"content": [{"type": "hologram"}]}
    text = f"{tool} by {os.getpid()}, {hanging} hanging, {cancelled} cancelled"
    return {"content": [{"type": "text", "text": text}]}


def result_of(request: dict[str, Any]) -> dict[str, object]:
    match request["method"]:
        case "initialize":
            return {
                "protocolVersion": "2025-06-18",
                "serverInfo": {"name": "odd", "version": "0"},
                "capabilities": {"tools": {"listChanged": True}, **SOURCES},
            }
        case "resources/list":
            due = f"What is due{os.environ.get('EVIL', '')}."
            note = {"uri": "note://today", "name": "today", "description": due}
            return {"resources": [note, {"uri": "picture://dot.png", "name": "dot"}]}
        case "resources/templates/list":
            return {"resourceTemplates": [{"uriTemplate": "note://{day}", "name": "a day"}]}
        case "prompts/list":
            return {"prompts": [{"name": "greet", "arguments": [{"name": "whom"}]}]}
        case "resources/read" if request["params"]["uri"] == "picture://dot.png":
            dot = {"uri": "picture://dot.png", "mimeType": "image/png", "blob": "iVBORw0KGgo="}
            return {"contents": [dot]}
        case "resources/read":
            uri = request["params"]["uri"]
            return {"contents": [{"uri": uri, "mimeType": "text/plain", "text": f"read {uri}"}]}
        case "prompts/get":
            text = f"Say hello to {request['params']['arguments']['whom']}."
            content = {"type": "text", "text": text}
            return {"messages": [{"role": "user", "content": content}]}
        case "tools/list":
            page = int((request.get("params") or {}).get("cursor") or 0)
            more = {"nextCursor": str(page + 1)} if page + 1 < len(lists[0]) else {}
            return {"tools": lists[0][page], **more}
        case _:
            return call(request["params"]["name"])


def listen_to_stdin() -> None:
    global hanging, cancelled
    for line in sys.stdin:
        request = json.loads(line)
        if request["method"] == "notifications/cancelled":
            cancelled += 1
        elif request["method"] in UNKNOWN:
            say(id=request["id"], error={"code": -32601, "message": "unknown"})
        elif (request.get("params") or {}).get("name") == "hang":
            hanging += 1
        elif "id" in request:
            if (request.get("params") or {}).get("name") == "progress":
                make_progress(request["params"]["_meta"]["progressToken"])
            name = (request.get("params") or {}).get("name")
            if name == "flood":
                flood(os.environ["FLOOD"])
            if name == "raw":
                print(raw_reply(request["id"]), flush=True)
            elif name == "refuse":
                error = {"code": -32000, "message": os.environ["EVIL"], "data": os.environ["EVIL"]}
                say(id=request["id"], error=error)
            else:
                say(id=request["id"], result=result_of(request))


def raw_reply(request_id: object) -> str:
    """A reply with what RAW holds as it is, or the line RAW_LINE."""
    line = os.environ.get("RAW_LINE", "").replace("ID", json.dumps(request_id))
    text = f"<{os.environ.get('RAW', '')}>"
    message = json.dumps({"content": [{"type": "text", "text": "TEXT"}]}).replace("TEXT", text)
    return line or f'{{"jsonrpc": "2.0", "id": {request_id}, "result": {message}}}'


def listen_to(port: int) -> None:
    from http.server import BaseHTTPRequestHandler
    from socketserver import TCPServer

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            keys.add(self.headers.get("X-Key", ""))
            session = self.headers.get("Mcp-Session-Id")
            if request["method"] == "initialize":
                session = f"session-{os.urandom(4).hex()}"
                sessions.add(session)
            if session not in sessions:
                self.reply(404 if session else 400, b"")
            elif "id" not in request:
                self.reply(202, b"")
            elif (request.get("params") or {}).get("name") == "raw":
                self.reply(200, raw_reply(request["id"]).encode(), session or "")
            else:
                message = {"jsonrpc": "2.0", "id": request["id"], "result": result_of(request)}
                self.reply(200, json.dumps(message).encode(), session or "")

        def do_GET(self) -> None:
            self.reply(405, b"")

        def do_DELETE(self) -> None:
            self.reply(200, b"")

        def reply(self, status: int, body: bytes, session: str = "") -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Mcp-Session-Id", session)
            self.end_headers()
            self.wfile.write(body)

        def log_request(self, code: object = "-", size: object = "-") -> None: ...

    TCPServer.allow_reuse_address = True
    with TCPServer(("127.0.0.1", port), Answers) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()


if __name__ == "__main__":
    if not lists:
        say_without_end()
    elif isinstance(lists[0], int):
        listen_to(lists.pop(0))
    else:
        listen_to_stdin()
