"""What a piece of source code holds: its imports by number, its definitions by name."""

from __future__ import annotations

import re
from typing import Final

from nplt_server.detail.cut import place_to_stop
from nplt_server.detail.glance import LINE_END, Line, counted, lines_looked_at
from nplt_server.detail.passage_outline import PassageOutline
from nplt_server.detail.passages import Passage

_DEFINED: Final = 80
_OPENING: Final = 60
_NOTED: Final = 50
_EXPLAINED: Final = 30
_REST: Final = 10

_OPENING_LINES: Final = 4
_LINE_CHARACTERS_MAX: Final = 160
_LOOKED_AT_OF_LINE: Final = 200
_DEFINITION: Final = re.compile(
    r"(?:(?:export|default|public|private|protected|internal|static|async|abstract|final|sealed"
    r"|pub|pub\(crate\)|unsafe|inline|override|virtual|declare|open|data|partial)[ \t]+)*"
    r"(?:(?:def|class|function\*?|fn|func|fun|interface|struct|enum|trait|impl|type|module"
    r"|namespace|package|macro_rules!|@interface|sub|proc)[ \t]+[\w$(<\"'*]"
    r"|(?:CREATE|ALTER|create|alter)[ \t]+(?:OR[ \t]+REPLACE[ \t]+)?[A-Za-z]+[ \t]"
    r"|(?:const|let|var|val)[ \t]+[\w$]+[ \t]*=[ \t]*(?:async[ \t]*)?(?:function|\()"
    r"|\#define[ \t]|\w{1,80}\(\)[ \t]*\{)"
)
_IMPORT: Final = re.compile(
    r"import[ \t{(\"'*]|from[ \t]+\S{1,80}[ \t]+import[ \t]|#[ \t]*include[ \t]*[<\"]"
    r"|use[ \t]+[\w:{]|using[ \t]+\w|require[ \t(]"
    r"|(?:const|let|var)[ \t]+[\w${} ,]{1,80}=[ \t]*require\("
)
_CONTROL: Final = re.compile(
    r"(?:if|for|foreach|while|switch|else|return|catch|do|try|elif|with|match|when)\b|\}"
)
_COMMENTS: Final = ("//", "#", "/*", "*", "--", '"""', "'''", ";;", "<!--")


def is_definition(line: str) -> bool:
    bare = line[:_LOOKED_AT_OF_LINE].lstrip()
    if _DEFINITION.match(bare):
        return True
    # The C family says what it returns, its name, its parameters, and opens a brace.
    return bare.endswith("{") and "(" in bare and not _CONTROL.match(bare)


def is_import(line: str) -> bool:
    return _IMPORT.match(line[:_LOOKED_AT_OF_LINE].lstrip()) is not None


def outline_of_code(text: str) -> PassageOutline:
    lines = lines_looked_at(text)
    passages: list[Passage] = []
    after_definition = False
    for index, line in enumerate(lines):
        weight = _worth(line, index=index, after_definition=after_definition)
        after_definition = is_definition(line.text)
        end = min(line.end, place_to_stop(text, line.start, _LINE_CHARACTERS_MAX))
        passages.append(Passage(start=line.start, end=end, weight=weight))
    imports = sum(is_import(line.text) for line in lines)
    count = counted(text.count(LINE_END) + 1, "line")
    return PassageOutline(
        text=text, passages=passages, label=f"[code, {count}, {counted(imports, 'import')}]"
    )


def _worth(line: Line, *, index: int, after_definition: bool) -> int:
    bare = line.text.lstrip()
    indentation = min(len(line.text) - len(bare), 8)
    if is_definition(line.text):
        return _DEFINED - indentation
    if is_import(line.text) or not any(map(str.isalnum, bare)):
        return 0
    if index < _OPENING_LINES:
        return _OPENING
    if "TODO" in bare or "FIXME" in bare:
        return _NOTED
    if bare.startswith(_COMMENTS):
        return _EXPLAINED if after_definition else _REST
    return _REST - indentation
