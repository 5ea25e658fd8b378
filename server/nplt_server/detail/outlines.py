"""What there is to say about a text, by what sort of text it is."""

from __future__ import annotations

from typing import Protocol, assert_never

from nplt_server.detail.code import outline_of_code
from nplt_server.detail.diffs import outline_of_diff
from nplt_server.detail.json_reading import read_json
from nplt_server.detail.json_shape import JsonShape
from nplt_server.detail.kinds import kind_of_text
from nplt_server.detail.listings import outline_of_listing
from nplt_server.detail.prose import outline_of_prose


class Outline(Protocol):
    def summary(self, characters_max: int) -> str: ...

    def gist(self, characters_max: int) -> str:
        """In one line."""
        ...


def outline_of(text: str) -> Outline:
    read = read_json(text)
    if read is not None:
        return JsonShape(read=read)
    kind = kind_of_text(text)
    match kind:
        case "prose":
            return outline_of_prose(text)
        case "code":
            return outline_of_code(text)
        case "diff":
            return outline_of_diff(text)
        case "table":
            return outline_of_listing(text, name="table, ")
        case "listing":
            return outline_of_listing(text)
        case _:
            assert_never(kind)
