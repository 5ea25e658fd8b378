"""What docs/library.md shows is run, and what it lists is all there is."""

from __future__ import annotations

import re
from pathlib import Path
from threading import Thread

import pytest

import nplt_client
from nplt_protocol.messages import EVENT_TYPES

DOCUMENT = (Path(__file__).parents[2] / "docs" / "library.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", DOCUMENT, re.S)


def rows(heading: str) -> list[list[str]]:
    table = DOCUMENT.split(heading)[1].split("\n\n")[0]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_every_block_of_code_runs(
    server: str, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    block = BLOCKS[number].replace("nplt://127.0.0.1:9999", server)
    failures: list[BaseException] = []

    def run() -> None:  # in a thread: `anyio.run` wants one without an event loop
        try:
            exec(compile(block, f"block {number}", "exec"), {"__name__": "block"})
        except BaseException as failure:
            failures.append(failure)

    thread = Thread(target=run)
    thread.start()
    thread.join()
    assert not failures, failures
    assert capsys.readouterr().out


def test_every_error_is_listed_with_its_exit_code() -> None:
    listed = {name.strip("`"): int(code) for name, code, _ in rows("| error | exit")}
    there = {
        name: getattr(nplt_client, name)
        for name in nplt_client.__all__
        if isinstance(getattr(nplt_client, name), type)
        and issubclass(getattr(nplt_client, name), Exception)
    }
    assert set(listed) == set(there)
    for name, kind in there.items():
        fixed = kind.exit_code if isinstance(kind.exit_code, int) else 2
        assert listed[name] == fixed, name


def test_every_event_is_listed() -> None:
    listed = {name for row in rows("| event | says") for name in re.findall(r"`(\w+)`", row[0])}
    assert listed == {kind.__name__ for kind in EVENT_TYPES.values()}


def test_every_method_in_the_library_document_exists() -> None:
    for name in re.findall(r"nplt_client\.([A-Z]\w+|connect)", DOCUMENT):
        assert name in nplt_client.__all__, name
    for name in re.findall(r"(?:await |`)client\.(\w+)\(", DOCUMENT):
        assert hasattr(nplt_client.Client, name), name
