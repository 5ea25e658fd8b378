"""The table of epoch reasons in docs/context.md is the one of the code."""

from __future__ import annotations

import re

from tests.documents.pages import ROOT

from nplt_server.context.epochs import EPOCH_REASONS


def test_the_table_of_epoch_reasons_is_the_one_in_the_code() -> None:
    page = (ROOT / "docs" / "context.md").read_text()
    section = page.split("<!-- reasons for an epoch -->")[1].split("<!--")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.+) \| (.+) \| (.+) \|$", section, re.M)
    assert rows == [(row.name, row.happened, row.changes, row.decides) for row in EPOCH_REASONS]
