"""The reference in docs/library.md, which is made from the code."""

from __future__ import annotations

import re

from tests.documents.library_reference import BEGIN, PAGE, examples, updated

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


def test_every_public_name_of_the_library_has_an_example() -> None:
    before, _, _ = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    assert sorted(examples(before)) == sorted(nplt_client.__all__)


def test_every_method_of_the_client_is_shown_before_the_reference() -> None:
    before, _, _ = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    methods = [name for name in vars(nplt_client.Client) if not name.startswith("_")]
    assert [name for name in methods if not re.search(rf"\b{name}\b", before)] == []
