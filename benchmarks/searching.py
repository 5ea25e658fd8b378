"""B14: search over ten thousand conversations, against `grep -r` over their files.

The messages are made of words as frequent as in a language: a few in nearly
every message, most in hardly any. grep looks for the bytes and nothing else;
the search gives the newest twenty messages with a piece of each, whatever the
case and the accents, and takes the last word for a beginning. Both are warm.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import accumulate
from pathlib import Path

from anyio.from_thread import BlockingPortal, start_blocking_portal

from benchmarks.conversations import FIRST_DAY, message
from benchmarks.measuring import Rounds, alternate, figure
from benchmarks.scratch import Plan
from benchmarks.verdicts import Question, Verdict
from nplt_storage.files.format import (
    LOCAL_USER,
    Header,
    empty_tail,
    encode_header,
    file_name,
)
from nplt_storage.files.store import JsonFileStore
from nplt_storage.search import SearchQuery

CONVERSATIONS = 10_000
MESSAGES_EACH = 20
WORDS_EACH = 85
VOCABULARY = 30_000
PLACES = {"rare": 20_000, "usual": 500, "frequent": 20}
"""In the vocabulary, which begins with the most frequent word."""


def searching(plan: Plan) -> list[Verdict]:
    data_dir = plan.new_path("searched")
    chance = random.Random(14)
    conversations = plan.sized(CONVERSATIONS, smoke=100)
    # Fewer words in fewer conversations: even the rare one must be in there.
    fewer = plan.sized(1, smoke=10)
    words = ["".join(chance.choices("etaoinshrdlu", k=8)) for _ in range(VOCABULARY // fewer)]
    _write_all(data_dir, words, chance, conversations=conversations)
    sought = {name: words[place // fewer] for name, place in PLACES.items()}
    with start_blocking_portal() as portal:
        begun = time.perf_counter()
        store = portal.call(partial(JsonFileStore.open_directory, data_dir, clock=_now))
        # It serves at once, and reads the files meanwhile.
        while portal.call(store.count, LOCAL_USER) < conversations:
            time.sleep(0.1)
        rebuild_seconds = time.perf_counter() - begun
        verdicts = [
            _compared(
                Question(number="B14", what=f"search for a {name} word"),
                alternate(
                    {
                        "search": partial(_search, portal, store, word),
                        "grep": partial(_grep, data_dir, word),
                    },
                    rounds=plan.rounds(),
                ),
            )
            for name, word in sought.items()
        ]
        portal.call(store.close)
    size = (data_dir / "catalog.sqlite").stat().st_size
    summary = f"made from the files in {figure(rebuild_seconds)} s, {figure(size / 1e6)} MB"
    return [
        *verdicts,
        Question(number="B14", what="the index").holds("is there", True, "", summary),
    ]


def _compared(question: Question, rounds: Rounds) -> Verdict:
    return question.at_least(
        20,
        rounds.ratio("grep", "search"),
        unit="× faster than grep -r",
        details=rounds.summary("search", "grep", unit="ms", per_unit=1e3),
    )


def _search(portal: BlockingPortal, store: JsonFileStore, word: str) -> float:
    begun = time.perf_counter()
    page = portal.call(store.search, LOCAL_USER, SearchQuery(text=word))
    seconds = time.perf_counter() - begun
    if not page.hits or not all(word in hit.snippet for hit in page.hits):
        raise ValueError(f"{word!r} is not where it was found")
    return seconds


def _grep(data_dir: Path, word: str) -> float:
    command = ["grep", "-rF", word, str(data_dir / "history")]
    begun = time.perf_counter()
    subprocess.run(command, capture_output=True, check=True, env={**os.environ, "LC_ALL": "C"})
    return time.perf_counter() - begun


def _write_all(
    data_dir: Path, words: list[str], chance: random.Random, *, conversations: int
) -> None:
    history = data_dir / "history"
    history.mkdir(parents=True, mode=0o700)
    frequencies = list(accumulate(1 / place for place in range(1, len(words) + 1)))
    for number in range(conversations):
        at = FIRST_DAY + timedelta(minutes=number)
        header = Header(session_id=f"c{number:05}", created_at=at)
        lines = [encode_header(header)]
        tail = empty_tail(at, len(lines[0]))
        for seq in range(1, MESSAGES_EACH + 1):
            text = " ".join(chance.choices(words, cum_weights=frequencies, k=WORDS_EACH))
            entry = message(seq, at=at, content=text)
            record, tail = tail.extended(entry)
            lines.append(record)
        path = history / file_name(header.session_id, at)
        path.write_bytes(b"".join([*lines, tail.closing_line]))


def _now() -> datetime:
    return datetime.now(UTC)
