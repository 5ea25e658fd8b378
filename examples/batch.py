"""Asks every line of a file, writes one JSON object per answer.

    python examples/batch.py questions.txt > answers.jsonl

Interrupt it, kill it, pull the cable: started again, it asks only what was not
asked yet. Each line has a `message_id` of its own, and a server that knows it
gives the answer it has instead of asking the model again.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import nplt_client
from nplt_client import sync

SERVER = os.environ.get("NPLT_SERVER", "nplt://127.0.0.1:9999")


def main(file: Path) -> int:
    failed = 0
    with sync.connect(SERVER) as client:
        go_to_conversation(client, f"batch {file.name}")
        for number, question in enumerate(file.read_text().splitlines(), 1):
            if question.strip():
                answer = ask(client, number, question)
                failed += "error" in answer
                print(json.dumps(answer, ensure_ascii=False), flush=True)
    return 1 if failed else 0


def go_to_conversation(client: sync.Client, name: str) -> None:
    try:
        client.switch(name)
    except nplt_client.RequestRefused as error:
        if error.code != "not_found":
            raise
        client.new(name)


def ask(client: sync.Client, number: int, question: str) -> dict[str, object]:
    message_id = hashlib.sha256(f"{number} {question}".encode()).hexdigest()[:32]
    row: dict[str, object] = {"line": number, "question": question}
    try:
        with client.ask(question, message_id=message_id) as turn:
            for event in turn:
                if isinstance(event, nplt_client.ToolFinished):
                    print(f"{number}: {event.tool_name} {event.status}", file=sys.stderr)
            turn.raise_unless_completed()
            return {**row, "answer": turn.text, "asked": not turn.receipt.duplicate}
    except (nplt_client.ProviderFailed, nplt_client.TurnInterrupted) as error:
        # One that the model could not answer; all other errors end the batch.
        return {**row, "error": error.message}


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/batch.py FILE, with a question on each line")
    sys.exit(main(Path(sys.argv[1])))
