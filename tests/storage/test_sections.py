"""What an entry says at three levels of detail."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.storage.conversations import START
from tests.storage.entry_strategies import sections, texts

from nplt_storage import decode_line, encode_line, entry_as_json
from nplt_storage.codec import crc_suffix
from nplt_storage.entries import (
    LIVE_SCREEN,
    LevelOfDetail,
    LevelOfDetailSections,
    ModelInputEntry,
    UnknownEntry,
)

LEVELS: list[LevelOfDetail] = ["live", "summary", "gist"]


def test_an_empty_level_falls_back_to_the_next_more_detailed_one() -> None:
    live, summary, gist = (("", "all of it"),), (("", "some"),), (("", "a word"),)
    full = LevelOfDetailSections(live=live, summary=summary, gist=gist)
    assert [full.get_sections(level) for level in LEVELS] == [live, summary, gist]
    two = LevelOfDetailSections(live=live, summary=summary)
    assert two.get_sections("gist") == summary
    one = LevelOfDetailSections(live=live)
    assert one.get_sections("gist") == one.get_sections("summary") == live
    assert LevelOfDetailSections().get_sections("gist") == ()


def test_a_section_is_found_by_its_name_at_each_level() -> None:
    original = LevelOfDetailSections(live=(("a", "1"), ("b", "2")), gist=(("a", "short"),))
    assert original.try_get_section("b") == "2"
    assert original.try_get_section("a", "gist") == "short"
    assert original.try_get_section("b", "gist") is None
    assert original.try_get_section("a", "summary") == "1", "the next more detailed level"


def test_uniform_sections_are_the_same_at_every_level() -> None:
    same = (("", "short as it is"), ("file", "text"))
    uniform = LevelOfDetailSections.create_uniform(same)
    assert [uniform.get_sections(level) for level in LEVELS] == [same] * 3
    assert uniform.holds("summary")
    assert uniform.holds("gist")


def test_plain_text_has_the_names_as_headings() -> None:
    original = LevelOfDetailSections(live=(("", "look at this"), ("top.txt", "CPU 3 %")))
    assert original.to_plain_text("live") == "look at this\n\n## top.txt\nCPU 3 %"
    assert LevelOfDetailSections().to_plain_text("live") == ""


def test_a_live_section_takes_the_place_of_its_namesake() -> None:
    original = LevelOfDetailSections(live=(("a", "1"), ("b", "2")), gist=(("", "g"),))
    assert original.with_live_section("a", "3").live == (("a", "3"), ("b", "2"))
    assert original.with_live_section("c", "3").live == (("a", "1"), ("b", "2"), ("c", "3"))
    assert original.with_live_section("a", "3").gist == original.gist
    assert original.live == (("a", "1"), ("b", "2")), "it is a value: nothing changes in it"


@settings(max_examples=40)
@given(sections, texts, texts)
def test_setting_a_live_section_twice_is_setting_it_once(
    original: LevelOfDetailSections, name: str, text: str
) -> None:
    once = original.with_live_section(name, text)
    assert once.with_live_section(name, text) == once
    assert [n for n, _ in original.live if n != name] == [n for n, _ in once.live if n != name]
    assert (once.summary, once.gist) == (original.summary, original.gist)


@settings(max_examples=40)
@given(sections, texts)
def test_the_live_screen_comes_off_as_it_was_put_on(
    original: LevelOfDetailSections, screen: str
) -> None:
    bare, _ = original.without_live_screen()
    assert bare.without_live_screen() == (bare, None)
    assert bare.with_live_section(LIVE_SCREEN, screen).without_live_screen() == (bare, screen)
    assert [s for s in original.live if s[0] != LIVE_SCREEN] == list(bare.live)


@settings(max_examples=40)
@given(st.sampled_from(["\x00", "漢字", "x"]), texts)
def test_no_text_is_on_disk_twice(letter: str, other: str) -> None:
    content = letter * 1000
    original = LevelOfDetailSections(live=(("", content), ("o", other)), gist=(("g", content),))
    entry = ModelInputEntry(
        seq=1, id="e", timestamp=START, turn_id="t", content=content, sections=original
    )
    assert json.dumps(entry_as_json(entry)).count(json.dumps(content)[1:-1]) == 1
    assert json.loads(encode_line(entry))["sections"]["gist"] == [["g"]]


@pytest.mark.parametrize(
    "source", [{"live": "x"}, {"live": [[]]}, {"live": [["a", 1]]}, {"gist": [["a", "b", "c"]]}]
)
def test_sections_in_an_unknown_shape_are_kept_whole(source: object) -> None:
    prompt = entry_as_json(ModelInputEntry(seq=1, id="e", timestamp=START, content="x"))
    body = orjson.dumps({**prompt, "sections": source})[:-1]
    line = body + crc_suffix(body)
    entry = decode_line(line)
    assert isinstance(entry, UnknownEntry)
    assert encode_line(entry) == line
