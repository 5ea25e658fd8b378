"""Writes down how many o200k tokens every text of the corpus has."""

from __future__ import annotations

import json

from tests.server.tokens.corpus import COUNTS, texts

from nplt_server.tokens import load_o200k

counter = load_o200k()
if counter is None:
    raise SystemExit("needs the extra `tokens`")
counts = {name: counter.count(text) for name, text in texts().items()}
COUNTS.write_text(json.dumps(counts, indent=2) + "\n", "utf-8")
