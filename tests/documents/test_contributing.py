"""What CONTRIBUTING.md shows is true of this checkout."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


def test_the_walk_of_a_prompt_names_each_file_once_and_says_what_happens_there() -> None:
    walk = CONTRIBUTING.split("<!-- walk -->")[1].split("<!-- end of walk -->")[0]
    lines = re.findall(r"^    (nplt_\S+)(.*)$", walk, re.M)
    files = [file for file, _ in lines]
    assert len(set(files)) == len(files)
    assert re.search(rf"^Number of files: {len(files)}$", walk, re.M)
    assert all(phrase.strip() for _, phrase in lines)


def test_every_source_file_it_names_is_there() -> None:
    files = re.findall(r"^    (nplt_\S+\.py)", CONTRIBUTING, re.M)
    assert files
    for file in files:
        package = file.partition("/")[0].removeprefix("nplt_")
        assert (ROOT / package / file).exists(), file


def test_every_make_target_it_names_is_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?:`|^    )make ([a-z-]+)", CONTRIBUTING, re.M):
        assert re.search(rf"^{target}:", makefile, re.M), target
