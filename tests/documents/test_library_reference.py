"""The reference in docs/library.md, which is made from the code."""

from __future__ import annotations

import re

from tests.documents.library_reference import BEGIN, PAGE, updated

import nplt_client


def test_the_reference_of_the_library_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert updated(page) == page, "run: python -m tests.documents.library_reference --write"


def test_the_reference_of_the_library_has_every_public_name_and_says_what_it_is() -> None:
    _, _, reference = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    parts = re.split(r"^#### `(\w+)`\n", reference, flags=re.M)[1:]
    entries = dict(zip(parts[::2], parts[1::2], strict=True))
    assert sorted(entries) == sorted(nplt_client.__all__)
    empty = [name for name, text in entries.items() if not re.sub(r"^###.*$", "", text).strip()]
    assert empty == []
