"""The table of the design memos' names in docs/memos.md."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "memos.md").read_text()
TABLE = PAGE.split("<!-- names of the memos -->")[1].split("<!-- end of names -->")[0]
ROWS = [
    tuple(cell.strip() for cell in line.strip("|").split("|"))
    for line in TABLE.splitlines()
    if line.startswith("|") and ".py`" in line
]


@pytest.mark.parametrize(("memo", "here", "file"), ROWS, ids=[row[0] for row in ROWS])
def test_every_name_of_the_memo_table_is_defined_in_its_file(
    memo: str, here: str, file: str
) -> None:
    source = (ROOT / file.strip("`")).read_text()
    names = re.findall(r"`([\w.]+)`", here)
    assert names, memo
    for part in (part for name in names for part in name.split(".")):
        definition = rf"^ *(?:class|def|async def) {part}\b|^ *{part}(?:: | = )"
        assert re.search(definition, source, re.MULTILINE), (part, file)


def test_each_name_of_the_memos_is_in_the_table_once() -> None:
    names = Counter(name for memo, _, _ in ROWS for name in re.findall(r"`([^`]+)`", memo))
    assert [name for name, count in names.items() if count > 1] == []
