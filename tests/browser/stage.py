"""A server with conversations as people have them, for pictures and for trying the page by hand.

The models are the emulated ones of `tests.vendors`: they answer known prompts with written answers,
think first or call a tool, and everything passes through the real server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

from tests.support.raw_client import (
    APPROVAL_REQUEST,
    PROMPT,
    SESSION_DELETE,
    SESSION_NEW,
    SESSION_UPDATE,
    TEXT_DELTA,
    TURN_FINISHED,
    RawClient,
)
from tests.support.server_process import ServerProcess
from tests.vendors import (
    Answer,
    Call,
    HostedEmulator,
    Rejection,
    Stall,
    Text,
    Thinking,
    ToolCall,
    emulator_in_thread,
)

IMPORT, SEEN = 0x34, 0x39
MODEL = "anthropic/claude-opus-4-6"

PRICES = {
    # what the vendors ask for; models at an address of one's own have no price otherwise
    f"{provider}/{model}": {"price_in": price_in, "price_out": price_out}
    for provider, model, price_in, price_out in (
        ("anthropic", "claude-opus-4-6", 5, 25),
        ("anthropic", "claude-haiku-4-5", 1, 5),
        ("anthropic", "claude-sonnet-5-5", 2, 10),
        ("openai", "gpt-5.2", 1.75, 14),
        ("openai", "gpt-4.1", 2, 8),
        ("openai", "gpt-4o-mini", 0.15, 0.6),
    )
}

RETRY = "How do I retry an HTTP request safely? With a short example in Python, please."
RETRY_ANSWER = """\
## Retrying a request safely

A retry is safe if the request is **idempotent**, or if the server recognises a repeated one. \
Three rules help:

1. Give each request an id, and *send the same id again*.
2. Wait longer each time, with some jitter.
3. Stop after a while, and say so.

```python
async def retry(send, *, attempts=5):
    for attempt in range(attempts):
        try:
            return await send()
        except ConnectionError:
            await sleep(2 ** attempt + random())
    raise GaveUp(f"no answer after {attempts} attempts")
```

| status | retry? | why |
|---|---|---|
| 429 | yes | after `Retry-After` |
| 500 | perhaps | only if it is idempotent |
| 400 | no | the request is wrong |

- [x] ids
- [x] jitter
- [ ] a test that cuts the connection after the request was sent

[RFC 9110](https://www.rfc-editor.org/rfc/rfc9110#section-9.2.2) says what *idempotent* means.
"""
RETRY_THOUGHTS = (
    "They ask for a retry that is safe. The point is idempotency: without it a retry may run twice "
    "what should run once. An id per request, backoff with jitter, and a limit. A short "
    "asynchronous example, and a table of which status codes are worth a retry."
)
SHORTER = "And in one sentence?"
SHORTER_ANSWER = (
    "Send the same request id again, wait longer after each failure, and give up after a while."
)
CHECK = "How is this machine doing?"
CHECK_ANSWER = """\
It is **healthy**: the load is low, and most of the memory is free."""
PICTURE = "Can this logo still be recognised at 16 pixels?"
PICTURE_ANSWER = """\
Yes. The shape is simple, and it has **one** colour beside its ground. Two things would help:

- a little more space around the mark,
- the same thickness for all strokes."""
NO_CREDIT = "Your credit balance is too low to access the Anthropic API."
CONTRACT = "Translate the contract into French, with the annexes."
FULL = "How full is the disk of this machine?"
OFFERS = "Compare the three offers for the roof."
OFFERS_ANSWER = """\
All three include the scaffolding. They differ in the insulation: the first uses wood fibre, the \
second mineral wool, and the third leaves the old insulation where it is."""
CAT = "Five names for a grey cat, please."
CAT_ANSWER = "Ash, Pebble, Mist, Smokey, and Earl (as in the tea)."
OLDER = (
    # name, days ago, prompt, answer
    ("Trailing newlines", 0, "Does POSIX require a trailing newline?",
     "Yes: a *line* ends with a newline, so a text file's last line has one, too."),
    ("Kubernetes probes", 0, "What is the difference between the liveness and readiness probe?",
     "Liveness restarts the container, readiness takes it out of the load balancer."),
    ("Sourdough timing", 1, "My dough rises too fast in summer. What can I do?",
     "Use colder water, less starter, and put it into the fridge overnight."),
    ("Draft of the letter to the landlord", 1, "Make this letter friendlier, please.",
     "Dear Ms Peeters, thank you for coming by on Tuesday …"),
    ("SQL window functions", 3, "Explain `row_number() over (partition by …)`.",
     "It numbers the rows of each partition, in the order that you give."),
    ("Why is the sky blue?", 5, "Why is the sky blue?",
     "Air scatters short waves of light more than long ones."),
    ("Weekend in Ghent", 12, "Two days in Ghent, with children and probably rain.",
     "Begin with the castle in the morning, before the school classes come …"),
    ("日本語の助詞", 20, "「は」と「が」の違いは？", "「は」は主題、「が」は主語を示します。"),
    ("Budget 2026", 45, "Which of these subscriptions can I cancel?",
     "The two that you have not opened since March: the cloud drive and the magazine."),
)  # fmt: skip
ARCHIVED = (
    ("Tax return 2025", 160, "Which receipts do I need for the home office?",
     "Rent, electricity and heating, and a plan with the area of the room."),
    ("Names for the boat", 210, "Short names for a small boat?", "Wren, Juno, Kestrel, Tide."),
)  # fmt: skip
DELETED = (
    ("Test", 2, "test", "It works."),
    ("Gift for a colleague who likes tea", 9, "A gift for about 30 euros?",
     "A small pot of cast iron, or a tasting of first flush Darjeelings."),
)  # fmt: skip


def script(call: Call) -> Answer:
    text = _last_text(call)
    if text is None:
        return Answer(parts=(Text(CHECK_ANSWER),))
    match text:
        case t if t.startswith(RETRY):
            parts = (Thinking(RETRY_THOUGHTS), Text(RETRY_ANSWER))
            return Answer(parts=parts, fault=Stall(after=130))  # for a picture of half an answer
        case t if t.startswith(SHORTER):
            return Answer(parts=(Text(SHORTER_ANSWER),))
        case t if t.startswith((CHECK, FULL)):
            return Answer(parts=(ToolCall("sys_monitor"),))
        case t if PICTURE in t:
            return Answer(parts=(Text(PICTURE_ANSWER),))
        case t if t.startswith(CAT):
            return Answer(parts=(Text(CAT_ANSWER),))
        case t if t.startswith(OFFERS):
            return Answer(parts=(Text(OFFERS_ANSWER),), fault=Stall(after=20))
        case t if t.startswith(CONTRACT):
            raise Rejection(NO_CREDIT, status=400, kind="invalid_request_error")
        case _:
            return Answer(parts=(Text(f"That is a good question. {text.strip().capitalize()}"),))


def _last_text(call: Call) -> str | None:
    """The text of the last prompt; `None` if tool results came after it."""
    content = call.body["messages"][-1]["content"]
    if isinstance(content, str):
        return content
    if any(part.get("type") == "tool_result" for part in content):
        return None
    return " ".join(part["text"] for part in content if "text" in part)


def old_conversation(name: str, days: int, prompt: str, answer: str) -> dict[str, Any]:
    """A document as the old program kept them, with times of the past."""
    at = datetime.now(UTC) - timedelta(days=days, minutes=30)
    times = [(at + timedelta(seconds=each)).isoformat() for each in (0, 9)]
    return {
        "session_id": sha256(name.encode()).hexdigest()[:32],
        "name": name,
        "created_at": times[0],
        "updated_at": times[1],
        "messages": [
            {"role": role, "content": text, "timestamp": time, "tool_calls": [], "metadata": {}}
            for role, text, time in (
                ("user", prompt, times[0]),
                ("assistant", answer, times[1]),
            )
        ],
    }


def fill(server: ServerProcess) -> dict[str, str]:
    """Makes the conversations of the past, and gives their ids by name."""
    with RawClient(server.port) as client:
        client.hello()
        ids = {each[0]: _imported(client, *each) for each in reversed((*OLDER, *ARCHIVED))}
        for name, *_ in ARCHIVED:
            client.request(SESSION_UPDATE, {"session_id": ids[name], "archived": True})
        for each in reversed(DELETED):
            client.request(SESSION_DELETE, {"session_id": _imported(client, *each)})
        client.request(SESSION_UPDATE, {"session_id": ids["Trailing newlines"], "pinned": True})
    return ids


def _imported(client: RawClient, name: str, days: int, prompt: str, answer: str) -> str:
    document = old_conversation(name, days, prompt, answer)
    stored = client.request(IMPORT, {"document": document}).json
    seen = {"session_id": stored["session_id"], "seq": 1_000}
    row = client.request(SEEN, seen).json
    return str(row["session_id"])


LIVE = (
    # name, prompt, the event after which it is in its state
    ("Translation of the contract", CONTRACT, TURN_FINISHED),
    ("Names for the cat", CAT, TURN_FINISHED),
    ("Offers for the roof", OFFERS, TEXT_DELTA),
    ("Full disk", FULL, APPROVAL_REQUEST),
)


def begin(server: ServerProcess) -> None:
    """Begins conversations that another client has left: one failed, one has an unread answer, one
    runs and one asks for a permission."""
    for name, prompt, event in LIVE:
        with RawClient(server.port) as client:
            client.hello()
            session_id = client.request(SESSION_NEW, {"name": name}).json["session_id"]
            client.request(PROMPT, {"session_id": session_id, "text": prompt})
            client.event(event)


@contextmanager
def stage(folder: Path, **settings: object) -> Iterator[tuple[ServerProcess, HostedEmulator]]:
    with emulator_in_thread(script, key="a-key") as vendors:
        key = folder / "key"
        key.write_text("a-key")
        key.chmod(0o600)
        configured: dict[str, object] = {
            "providers": [
                {
                    "id": "anthropic",
                    "type": "anthropic",
                    "base_url": vendors.anthropic_url,
                    "api_key_file": str(key),
                    "models": ["claude-opus-4-6", "claude-haiku-4-5", "claude-sonnet-5-5"],
                },
                {
                    "id": "openai",
                    "type": "openai",
                    "base_url": vendors.openai_url,
                    "api_key_file": str(key),
                    "models": ["gpt-5.2", "gpt-4.1", "gpt-4o-mini"],
                },
                {"id": "offline", "type": "offline"},
            ],
            "default_model": MODEL,
            "models": PRICES,
            "tools": {"sys_monitor": "ask"},
            **settings,
        }
        server = ServerProcess(folder / "data", settings=configured).start()
        try:
            yield server, vendors
        finally:
            server.kill()


def send_later(server: ServerProcess, session_id: str, text: str, at: datetime) -> None:
    with RawClient(server.port) as client:
        client.hello()
        fields = {"session_id": session_id, "text": text, "not_before": at.isoformat()}
        receipt = client.request(PROMPT, fields).json
        assert receipt["state"] == "later", json.dumps(receipt)
