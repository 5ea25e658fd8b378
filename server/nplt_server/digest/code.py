"""Digests source code, diffs, and lists of lines such as logs and tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, Literal, TypeAlias

from msgspec import structs

from nplt_server.digest.text import (
    LINE_END,
    Passage,
    PassageOutline,
    TextLine,
    counted,
    lines_of,
    passage_of,
    sampled_lines,
    sampled_ranges,
)

# ------------------------------------------------------------------------------
# Source code: the number of imports, the definitions by name

_DEFINITION_WORTH: Final = 80
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
_END_OF_NAME: Final = re.compile(r"(?<=\w)\(|[ \t]*[:{=<]|[ \t]\($")
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
        return _EXPLAINED if is_explained else _REST
    return _REST - indentation


# ------------------------------------------------------------------------------
# Diffs: files, and the changed lines

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
        said = line.text
        is_message = is_message and not said.startswith(FILE_OF_DIFF)
        if is_message:
            weight = _CHANGED if said.startswith(_ENVELOPE) else _MESSAGE
        elif said.startswith(FILE_OF_DIFF):
            weight = _FILE
        elif not said.startswith(("+", "-")) or said.startswith(("+++", "---")):
            weight = 0
        elif not any(map(str.isalnum, said)):
            weight = 1
        else:
            weight = _DEFINITION_WORTH_IN_DIFF if is_definition(said[1:]) else _CHANGED
        passages.append(passage_of(text, line, weight, _LINE_CHARACTERS_MAX))
    files = text.count(LINE_END + FILE_OF_DIFF) + text.startswith(FILE_OF_DIFF)
    label = f"[diff, {counted(files, 'file')}, {counted(text.count(LINE_END) + 1, 'line')}]"
    return PassageOutline(text=text, passages=passages, label=label)


# ------------------------------------------------------------------------------
# Logs, tables and other lists of lines
#
# The number of lines, the first and the last, and above all errors and warnings, each kind
# once.

_FIRST_ERROR: Final = 102
_LAST_ERROR: Final = 100
_FIRST: Final = 96
_LAST: Final = 90
_NEAR_THE_ENDS: Final = 55

_LISTING_LINE_CHARACTERS_MAX: Final = 180
_ERROR_WORDS: Final = (
    *("error", "exception", "fatal", "failed", "failure", "panic", "critical", "traceback"),
    *("denied", "refused", "timed out", "segfault", "abort"),
    *("错误", "失败", "异常", "致命", "崩溃", "超时", "拒绝"),
)
_WARNING_WORDS: Final = ("warn", "deprecat", "警告", "告警")
_NO_TROUBLE: Final = re.compile(
    r"\b(?:0|no) (?:error|fail|warn)|(?:error|exception|warning|failure)s?[./_-]\w"
    r"|[0无没](?: ?个)?有?(?:错误|异常|失败)"
)
"""`0 errors`; and files that are named for what they are about."""
_DIGITS: Final = re.compile(r"\d+")
_LISTING_LINE_LOOKED_AT: Final = 400
_SOUGHT_IN_THE_WHOLE: Final = (
    *("ERROR", "Error", "FATAL", "Traceback", "FAILED", "panic", "WARN", "错误", "异常", "失败"),
)
"""Of a text that is too long to be read line by line the first and the last are found."""

Trouble: TypeAlias = Literal["error", "warning", ""]

_NEW: Final[dict[Trouble, int]] = {"error": 84, "warning": 64, "": 30}
"""The worth of a line of a sort that was not there before."""


def outline_of_listing(text: str, *, name: str = "") -> PassageOutline:
    lines = sampled_lines(text)
    is_read_whole = len(sampled_ranges(text)) == 1
    if not is_read_whole:
        lines = _with_lines_found(text, lines)
    troubles = troubles_in(lines)
    sorts_seen: set[str] = set()
    passages: list[Passage] = []
    for index, (line, trouble) in enumerate(zip(lines, troubles, strict=True)):
        # The first of each sort; the same with other numbers is the same.
        sort = _DIGITS.sub("#", line.text[:_LISTING_LINE_LOOKED_AT])
        of_words = _REST if sort in sorts_seen else _NEW[trouble]
        sorts_seen.add(sort)
        from_end = len(lines) - 1 - index
        of_place = _NEAR_THE_ENDS - min(index, 3) if min(index, from_end) < 3 else _REST
        if index == 0 or from_end == 0:
            of_place = _FIRST if index == 0 else _LAST
        weight = max(of_place, of_words)
        passages.append(passage_of(text, line, weight, _LISTING_LINE_CHARACTERS_MAX))
    if "error" in troubles:
        first = troubles.index("error")
        last = len(troubles) - 1 - troubles[::-1].index("error")
        passages[last] = structs.replace(passages[last], weight=_LAST_ERROR)
        passages[first] = structs.replace(passages[first], weight=_FIRST_ERROR)
    count = text.count(LINE_END) + (not text.endswith(LINE_END))
    label = f"{name}{counted(count, 'line')}"
    for trouble in ("error", "warning") if is_read_whole else ():
        if found := troubles.count(trouble):
            label += f", {found:,} with {trouble}s"
    return PassageOutline(text=text, passages=passages, label=f"[{label}]")


def troubles_in(lines: Sequence[TextLine]) -> list[Trouble]:
    """What each line tells of. Only words that occur at all are looked for in each of them."""
    lowered = "\n".join(line.text for line in lines).lower()
    errors = [word for word in _ERROR_WORDS if word in lowered]
    warnings = [word for word in _WARNING_WORDS if word in lowered]
    troubles: list[Trouble] = [""] * len(lines)
    for index, line in enumerate(lines if errors or warnings else ()):
        said = line.text[:_LISTING_LINE_LOOKED_AT].lower()
        is_error = any(word in said for word in errors)
        if (is_error or any(word in said for word in warnings)) and not _NO_TROUBLE.search(said):
            troubles[index] = "error" if is_error else "warning"
    return troubles


def _with_lines_found(text: str, lines: Iterable[TextLine]) -> list[TextLine]:
    by_start = {line.start: line for line in lines}
    for word in _SOUGHT_IN_THE_WHOLE:
        for place in (text.find(word), text.rfind(word)):
            if place < 0:
                continue
            near = _LISTING_LINE_CHARACTERS_MAX
            start = text.rfind("\n", max(0, place - near), place) + 1 or place
            end = text.find("\n", place, place + near)
            for line in lines_of(text, start, end if end > 0 else place + near):
                by_start.setdefault(line.start, line)
    return [by_start[start] for start in sorted(by_start)]
