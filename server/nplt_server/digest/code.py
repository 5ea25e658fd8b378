"""Outlines source code and diffs.

Of source code: the number of imports, the definitions by name, the opening lines and notes. Of a
diff: the commit message, the files, and the changed lines.
"""

from __future__ import annotations

import re
from typing import Final

from nplt_server.digest.text import (
    LINE_END,
    REST_WEIGHT,
    Passage,
    PassageOutline,
    counted,
    passage_of,
    sampled_lines,
)

_DEFINITION_WORTH: Final = 80
_OPENING: Final = 60
_NOTED: Final = 50
_EXPLAINED: Final = 30

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
_END_OF_NAME: Final = re.compile(r"(?<=\w)\(|[ \t]*[:{=<]|[ \t]\($")
_COMMENTS: Final = ("//", "#", "/*", "*", "--", '"""', "'''", ";;", "<!--")


def is_definition(line: str) -> bool:
    bare = line[:_LOOKED_AT_OF_LINE].lstrip()
    if _DEFINITION.match(bare):
        return True
    # A definition in a language of the C family: type, name, parameters, opening brace.
    return bare.endswith("{") and "(" in bare and not _CONTROL.match(bare)


def is_import(line: str) -> bool:
    return _IMPORT.match(line[:_LOOKED_AT_OF_LINE].lstrip()) is not None


def outline_of_code(text: str) -> PassageOutline:
    passages: list[Passage] = []
    names: list[Passage] = []
    imports = 0
    after_definition = False
    for index, line in enumerate(sampled_lines(text)):
        bare = line.text.lstrip()
        indentation = min(len(line.text) - len(bare), 8)
        if is_definition(bare):
            after_definition, weight = True, _DEFINITION_WORTH - indentation
            end_of_name = _END_OF_NAME.search(line.text)
            named = _LINE_CHARACTERS_MAX if end_of_name is None else end_of_name.start()
            name_end = min(line.end, line.start + named)
            names.append(Passage(start=line.start, end=name_end, weight=weight))
        elif is_import(bare):
            after_definition, weight, imports = False, 0, imports + 1
        else:
            weight = _worth_in_code(bare, indentation, index=index, is_explained=after_definition)
            after_definition = False
        passages.append(passage_of(text, line, weight, _LINE_CHARACTERS_MAX))
    count = counted(text.count(LINE_END) + 1, "line")
    label = f"[code, {count}, {counted(imports, 'import')}]"
    return PassageOutline(text=text, passages=passages, of_gist=names, label=label)


def _worth_in_code(bare: str, indentation: int, *, index: int, is_explained: bool) -> int:
    if not any(map(str.isalnum, bare)):
        return 0
    if index < _OPENING_LINES:
        return _OPENING
    if "TODO" in bare or "FIXME" in bare:
        return _NOTED
    if bare.startswith(_COMMENTS):
        return _EXPLAINED if is_explained else REST_WEIGHT
    return REST_WEIGHT - indentation


FILE_OF_DIFF: Final = "diff --git "

_FILE: Final = 80
_MESSAGE: Final = 82
_DEFINITION_WORTH_IN_DIFF: Final = 60
_CHANGED: Final = 20
_ENVELOPE: Final = ("commit ", "Author:", "Date:", "Merge:", "From ")


def outline_of_diff(text: str) -> PassageOutline:
    passages: list[Passage] = []
    is_message = True
    for line in sampled_lines(text):
        content = line.text
        is_message = is_message and not content.startswith(FILE_OF_DIFF)
        if is_message:
            weight = _CHANGED if content.startswith(_ENVELOPE) else _MESSAGE
        elif content.startswith(FILE_OF_DIFF):
            weight = _FILE
        elif not content.startswith(("+", "-")) or content.startswith(("+++", "---")):
            weight = 0
        elif not any(map(str.isalnum, content)):
            weight = 1
        else:
            weight = _DEFINITION_WORTH_IN_DIFF if is_definition(content[1:]) else _CHANGED
        passages.append(passage_of(text, line, weight, _LINE_CHARACTERS_MAX))
    files = text.count(LINE_END + FILE_OF_DIFF) + text.startswith(FILE_OF_DIFF)
    label = f"[diff, {counted(files, 'file')}, {counted(text.count(LINE_END) + 1, 'line')}]"
    return PassageOutline(text=text, passages=passages, label=label)
