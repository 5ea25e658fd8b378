"""Files can be read under the allowed directories, and nowhere else."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from pathlib import Path, PurePath

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.tool_hosts import NoConversationHost

from nplt_protocol import JsonObject
from nplt_server.tools import ToolFailed, builtin
from nplt_server.tools.builtin import AllowedRoots

SECRET = "nobody may read this"


class Files:
    def __init__(self, *roots: Path) -> None:
        allowed = AllowedRoots(roots)
        self._tools = {tool.description.name: tool for tool in allowed.tools()}

    @property
    def descriptions(self) -> list[str]:
        return [tool.description.description for tool in self._tools.values()]

    def read(self, path: str | Path, **arguments: object) -> str:
        return self._use("read_file", path, arguments)

    def list(self, path: str | Path = "", **arguments: object) -> str:
        return self._use("list_files", path, arguments)

    def refuses(self, path: str | Path) -> str:
        """To read and to list it, with the same words."""
        with pytest.raises(ToolFailed) as reading:
            self.read(path)
        with pytest.raises(ToolFailed) as listing:
            self.list(path)
        assert str(reading.value) == str(listing.value)
        return str(reading.value)

    def _use(self, name: str, path: str | Path, more: dict[str, object]) -> str:
        arguments: JsonObject = {"path": str(path), **more}  # type: ignore[dict-item]

        async def use() -> str:
            return await self._tools[name].run(arguments, NoConversationHost())

        return asyncio.run(use())


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An allowed directory, a forbidden one beside it, and all ways between them."""
    house = tmp_path_factory.mktemp("house")
    for name in ("open/deep", "closed", "open-not"):
        (house / name).mkdir(parents=True)
    (house / "open/notes.txt").write_text("one\ntwo\r\nthree\n")
    (house / "open/deep/more.txt").write_text("deep")
    (house / "open/empty").write_text("")
    (house / "closed/secret.txt").write_text(SECRET)
    (house / "open-not/secret.txt").write_text(SECRET)
    links = {
        "inside": "deep/more.txt",
        "escape": "../closed/secret.txt",
        "absolute": str(house / "closed/secret.txt"),
        "closed": "../closed",
        "chain": "escape",
        "up": "..",
        "loop": "loop",
        "ping": "pong",
        "pong": "ping",
        "dangling": "../closed/nothing",
        "environ": "/proc/self/environ",
        "cwd": "/proc/self/cwd",
    }
    for name, target in links.items():
        (house / "open" / name).symlink_to(target)
    os.mkfifo(house / "open/fifo")
    return house


@pytest.fixture(scope="module")
def files(house: Path) -> Files:
    return Files(house / "open")


def test_a_file_is_read_by_an_absolute_path_or_a_relative_one(files: Files, house: Path) -> None:
    result = files.read("notes.txt")
    assert result == f"[{house}/open/notes.txt, lines 1 to 3 of 3; the end]\none\ntwo\nthree"
    assert files.read(house / "open/notes.txt") == result
    assert files.read("deep/../notes.txt") == result


def test_a_link_that_stays_inside_is_followed(files: Files) -> None:
    assert files.read("inside").endswith("\ndeep")


ESCAPES = [
    "../closed/secret.txt",
    "deep/../../closed/secret.txt",
    "../open-not/secret.txt",
    "escape",
    "absolute",
    "chain",
    "closed/secret.txt",
    "up/closed/secret.txt",
    "/etc/passwd",
    "/proc/self/environ",
    "/proc/self/fd/0",
    "environ",
    "cwd",
    "/dev/zero",
    "//etc/passwd",
    "/",
    "..",
]


@pytest.mark.parametrize("path", ESCAPES)
def test_a_path_outside_the_tool_roots_is_refused(files: Files, path: str) -> None:
    assert files.refuses(path).endswith("is outside of the directories that are open to you")


def test_paths_outside_the_tool_roots_reveal_nothing_about_their_existence(
    files: Files, house: Path
) -> None:
    there, not_there = files.refuses("../closed/secret.txt"), files.refuses("../closed/nothing")
    assert there.replace("secret.txt", "nothing") == not_there
    assert "outside" in files.refuses("dangling")


@pytest.mark.parametrize("path", ["loop", "ping", "loop/x", "nothing", "notes.txt/x", "x" * 300])
def test_read_file_reports_what_can_not_be_opened(files: Files, path: str) -> None:
    assert "outside" not in files.refuses(path)


@pytest.mark.parametrize("path", ["a\0b", "\ud800"])
def test_read_file_reports_an_invalid_path(files: Files, path: str) -> None:
    assert files.refuses(path).endswith("is not a path")


def test_a_fifo_is_not_waited_for(files: Files) -> None:
    assert files.refuses("fifo") == "'fifo': neither a file nor a directory"


def test_device_files_are_not_opened(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    really_open = os.open

    def recording(path: str, flags: int, *, dir_fd: int | None = None) -> int:
        opened.append(path)
        return really_open(path, flags, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", recording)
    files.refuses("fifo")
    assert opened
    assert "fifo" not in opened


def test_proc_of_the_server_is_never_read_even_inside_the_tool_roots() -> None:
    files = Files(Path("/"))
    assert "outside" in files.refuses("/proc/self/environ")
    assert "outside" in files.refuses("/".join(("proc", "self", "root", "proc", "self", "environ")))


STEPS = st.sampled_from(
    ["..", ".", "", "deep", "up", "closed", "open", "escape", "secret.txt", "cwd", "notes.txt"]
)


@given(st.lists(STEPS, max_size=8), st.booleans())
def test_no_sequence_of_path_components_leads_out_of_the_tool_roots(
    files: Files, house: Path, steps: list[str], absolute: bool
) -> None:
    path = "/".join([str(house / "open"), *steps] if absolute else steps)
    for use in (files.read, files.list):
        try:
            result = use(path)
        except ToolFailed:
            continue
        assert SECRET not in result
        place = re.match(r"\[(.*?)(?:, (?:lines|entries) .*| is a file of .*| is empty)\]", result)
        assert place is not None
        assert PurePath(place[1]).is_relative_to(house / "open")


@pytest.mark.parametrize("swapped", ["deep", "deep/more.txt"])
def test_a_symbolic_link_created_during_the_open_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swapped: str
) -> None:
    root = tmp_path / "open"
    (root / "deep").mkdir(parents=True)
    (root / "deep/more.txt").write_text("fine")
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed/more.txt").write_text(SECRET)
    follow: Callable[[Path], str] = os.path.realpath

    def follow_then_swap(path: Path) -> str:
        real = follow(path)
        if Path(path) != root and not (root / swapped).is_symlink():
            (root / swapped).rename(tmp_path / "aside")
            (root / swapped).symlink_to(tmp_path / "closed" / Path(swapped).relative_to("deep"))
        return real

    monkeypatch.setattr(builtin, "realpath", follow_then_swap)
    with pytest.raises(ToolFailed) as failed:
        Files(root).read("deep/more.txt")
    assert SECRET not in str(failed.value)
    assert (root / swapped).is_symlink()


def test_no_descriptor_is_left_open(files: Files, house: Path) -> None:
    files.read("notes.txt")
    files.list()
    for path in ("fifo", "loop", "escape", "nothing", "deep/nothing/x"):
        files.refuses(path)
    opened = [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()]
    assert [path for path in opened if PurePath(path).is_relative_to(house)] == []


def test_a_part_of_a_file_is_read_by_its_lines(files: Files) -> None:
    assert "lines 2 to 2 of 3; next offset 3]\ntwo" in files.read("notes.txt", offset=2, limit=1)
    assert "lines 3 to 3 of 3; the end]\nthree" in files.read("notes.txt", offset=3)
    with pytest.raises(ToolFailed, match="has only 3 lines"):
        files.read("notes.txt", offset=4)


def test_read_file_reports_an_empty_file_and_a_directory(files: Files, house: Path) -> None:
    assert files.read("empty") == f"[{house}/open/empty is empty]"
    with pytest.raises(ToolFailed, match="is a directory: list_files shows it"):
        files.read("deep")


def test_long_files_come_in_parts_that_fit_and_a_long_line_is_cut(tmp_path: Path) -> None:
    (tmp_path / "long").write_text(
        "漢" * 1_000 + "\n" + "\n".join(["x" * 999] * 50) + "\n" + "y" * 10**5
    )
    files = Files(tmp_path)
    offset, parts = 1, 0
    while True:
        result = files.read("long", offset=offset)
        assert len(result.encode()) < 32 * 1024
        parts += 1
        place = re.search(r"next offset (\d+)", result)
        if place is None:
            break
        assert int(place[1]) > offset
        offset = int(place[1])
    assert parts == 4
    assert result.endswith("[the line goes on: 100,000 characters]")


def test_read_file_reports_a_binary_file_and_one_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "picture").write_bytes(b"\x89PNG\0\0")
    (tmp_path / "large").write_bytes(b"text\n" * 100)
    monkeypatch.setattr(builtin, "FILE_BYTES_MAX", 499)
    files = Files(tmp_path)
    with pytest.raises(ToolFailed, match="picture is a binary file of 6 bytes"):
        files.read("picture")
    with pytest.raises(ToolFailed, match="large is too large"):
        files.read("large")


def test_text_of_another_encoding_is_read_as_well_as_can_be(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes("\ufeffcafé".encode() + b" caf\xe9")
    assert Files(tmp_path).read("latin").endswith("\ncafé caf\ufffd")


def test_a_directory_is_listed_with_what_each_thing_is(files: Files, house: Path) -> None:
    lines = files.list().splitlines()
    assert lines[0] == f"[{house}/open, entries 1 to 16 of 16; the end]"
    assert {"deep/", "notes.txt (15 bytes)", "escape (link)", "fifo (special)"} < {*lines}
    assert lines[1:] == sorted(lines[1:])
    assert files.list("notes.txt") == f"[{house}/open/notes.txt is a file of 15 bytes]"


def test_a_long_directory_is_listed_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files(tmp_path)
    assert files.list() == f"[{tmp_path} is empty]"
    for number in range(5):
        (tmp_path / f"file{number}").touch()
    assert "entries 3 to 4 of 5; next offset 4]\nfile2 (0 bytes)" in files.list(offset=2, limit=2)
    with pytest.raises(ToolFailed, match="has only 5 entries"):
        files.list(offset=5)
    monkeypatch.setattr(builtin, "ENTRIES_MAX", 4)
    with pytest.raises(ToolFailed, match="has more than 4 entries"):
        files.list()


def test_a_name_that_would_break_the_list_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "a\nb").touch()
    assert files_listed(tmp_path) == [r"'a\nb' (0 bytes)"]


def files_listed(directory: Path) -> list[str]:
    return Files(directory).list().splitlines()[1:]


def test_of_several_roots_the_first_that_has_it_is_meant(tmp_path: Path) -> None:
    for root, name in (("a", "one"), ("b", "one"), ("b", "two")):
        (tmp_path / root).mkdir(exist_ok=True)
        (tmp_path / root / name).write_text(root)
    files = Files(tmp_path / "a", tmp_path / "b")
    assert files.read("one").endswith("\na")
    assert files.read("two").endswith("\nb")
    assert files.list() == f"{tmp_path}/a/\n{tmp_path}/b/"
    assert all(str(tmp_path / "b") in described for described in files.descriptions)
    assert "no such file" in files.refuses("three")


def test_a_root_may_itself_be_a_link(tmp_path: Path, house: Path) -> None:
    (tmp_path / "root").symlink_to(house / "open")
    files = Files(tmp_path / "root")
    assert files.read("notes.txt").endswith("three")
    assert files.read(tmp_path / "root/notes.txt").endswith("three")
    assert "outside" in files.refuses("escape")
