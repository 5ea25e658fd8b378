"""What an entry says at three levels of detail.

*live* is all of it, *summary* and *gist* are ever shorter; each is a sequence of
named sections. Made when the entry is written, so that a context that fits can
be put together at any time without asking a model. A level nobody filled is
answered by the next more detailed one. The state of the widgets, as it was when
the entry was written, is the live section `[LiveScreen]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from nplt_storage.facts.shapes import WrongShape

LIVE_SCREEN: Final = "[LiveScreen]"

LevelOfDetail: TypeAlias = Literal["live", "summary", "gist"]
Section: TypeAlias = tuple[str, str]
"""A name, which may be empty, and a text."""
Sections: TypeAlias = tuple[Section, ...]

_LEVELS: Final[tuple[LevelOfDetail, ...]] = ("live", "summary", "gist")


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelOfDetailSections:
    live: Sections = ()
    summary: Sections = ()
    gist: Sections = ()

    def get_sections(self, level: LevelOfDetail) -> Sections:
        if level == "gist" and self.gist:
            return self.gist
        return self.summary if level != "live" and self.summary else self.live

    def to_plain_text(self, level: LevelOfDetail) -> str:
        """Its sections under their names; one without a name is just its text."""
        return "\n\n".join(
            f"## {name}\n{text}" if name else text for name, text in self.get_sections(level)
        )

    def with_live_section(self, name: str, text: str) -> LevelOfDetailSections:
        """In the place of the live section of that name, or after the last."""
        names = [section[0] for section in self.live]
        place = names.index(name) if name in names else len(names)
        return replace(self, live=(*self.live[:place], (name, text), *self.live[place + 1 :]))

    def without_live_screen(self) -> tuple[LevelOfDetailSections, str | None]:
        screens = [text for name, text in self.live if name == LIVE_SCREEN]
        if not screens:
            return self, None
        rest = tuple(section for section in self.live if section[0] != LIVE_SCREEN)
        return replace(self, live=rest), screens[0]


def sections_as_json(sections: LevelOfDetailSections, said: str) -> dict[str, list[list[str]]]:
    """`said` is the text that stands beside them; a section that holds the same is
    written by its name alone, so that no long text is on disk twice."""
    return {
        level: [[name] if text == said else [name, text] for name, text in getattr(sections, level)]
        for level in _LEVELS
        if getattr(sections, level)
    }


def sections_from_json(source: Mapping[str, Any], said: str) -> LevelOfDetailSections:
    return LevelOfDetailSections(
        **{level: _read_level(source[level], said) for level in _LEVELS if level in source}
    )


def _read_level(source: object, said: str) -> Sections:
    if not isinstance(source, list):
        raise WrongShape("a level of detail is not a list of sections")
    return tuple(_read_section(section, said) for section in source)


def _read_section(source: object, said: str) -> Section:
    match source:
        case [str(name)]:
            return name, said
        case [str(name), str(text)]:
            return name, text
        case _:
            raise WrongShape("a section is not a name and a text")
